"""Bodies that are passed on with some fields set by the gateway, all else being the bytes that the client sent.

In: a JSON object that was found valid before. Out: its bytes with other values, or more members at its end. Made for `smg.pipeline.relay`,
which says what the engines that compute one request together, or one rank of an engine, are to be told.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from smg.api.decode import decode
from smg.api.openai.division import find_value

__all__ = ["Asked", "asked_in", "spliced"]

FIELDS = msgspec.json.Decoder(dict[str, Raw])
ITEMS = msgspec.json.Decoder(list[Raw])

NOTHING: Mapping[str, bytes] = {}


class Asked(Struct, frozen=True):
    """`prompts`: their number; `scored`: the prompt's own log probabilities are asked for."""

    prompts: int = 1
    scored: bool = False


class Body(Struct, frozen=True):
    """Of chat and completions."""

    prompt: Raw = Raw()
    prompt_logprobs: Raw = Raw(b"null")
    echo: Raw = Raw(b"false")


BODY = msgspec.json.Decoder(Body)


def spliced(body: bytes, values: Mapping[str, bytes], too: Mapping[str, bytes] = NOTHING) -> bytes:
    """Gives the body with these values, each JSON. Where it has no such member it gets one at its end, but for those of `too`.

    Raises InvalidJson when it is no object. Only where a name is written with an escape, or twice, is the space between members lost.
    """
    fields = decode(body, FIELDS)
    wanted = {**values, **{name: value for name, value in too.items() if name in fields}}
    spans = {name: find_value(body, name.encode()) for name in wanted if name in fields}
    if None in spans.values():
        return msgspec.json.encode({**fields, **{name: Raw(value) for name, value in wanted.items()}})
    more = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in wanted.items() if name not in fields)
    pieces: list[bytes] = []
    at = 0
    for (begin, end), name in sorted((span, name) for name, span in spans.items() if span is not None):
        pieces += body[at:begin], wanted[name]
        at = end
    close = body.rindex(b"}")
    pieces += body[at:close], b"," if more and fields else b"", more, body[close:]
    return b"".join(pieces)


def asked_in(body: bytes) -> Asked:
    """Reads what two engines that compute a request together must know. Several prompts are a list of texts, or of lists of token ids."""
    read = decode(body, BODY)
    items = ITEMS.decode(read.prompt) if bytes(read.prompt).startswith(b"[") else []
    several = len(items) if items and bytes(items[0]).startswith((b'"', b"[")) else 1
    return Asked(prompts=several, scored=bytes(read.prompt_logprobs) != b"null" or bytes(read.echo) not in (b"false", b"null"))
