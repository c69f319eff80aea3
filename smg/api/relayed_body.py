"""What the gateway must know of a body that it passes on: model, stream, user, how much is asked for, and the text by which an engine is
chosen.

Only these are read, leniently: what a body says besides is between client and engine, which also judges whether it is valid. And the one
change that is ever made to a body: the model's name.
"""

import re
from collections.abc import Iterator
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from smg.api.decode import decode
from smg.errors import InvalidValue

__all__ = ["Outline", "outline_of_form", "outline_of_json", "rename_in_form", "rename_in_json"]

T = TypeVar("T")

# Of a prompt's text; the index of prefixes looks at no more.
LONGEST_TEXT = 1 << 19
MOST_PARTS = 1000
BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;",]{1,70}))', re.IGNORECASE)
PART_NAME = re.compile(rb'content-disposition:[^\r\n]*?[;\s]name="([^"\r\n]*)"', re.IGNORECASE)
PART_HEAD_BYTES = 4096


class Outline(Struct, frozen=True, kw_only=True):
    """`model` empty: the body names none."""

    model: str = ""
    stream: bool = False
    user: str | None = None
    text: str = ""
    max_tokens: int | UnsetType = UNSET
    n: int = 1


class Part(Struct, frozen=True):
    """Of a message's content; what is no text weighs nothing."""

    text: str = ""


class Message(Struct, frozen=True):
    """Of chat, Responses or Messages."""

    role: str = ""
    content: str | list[Part] | None = None


class Body(Struct, frozen=True):
    """Any of the bodies. In the order in which a prompt is made of them, so that alike prompts begin alike."""

    model: str | None = None
    stream: bool | None = None
    user: Raw = Raw()
    tools: Raw = Raw()
    instructions: Raw = Raw()
    system: Raw = Raw()
    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    text: Raw = Raw()
    query: Raw = Raw()
    documents: Raw = Raw()
    max_tokens: Raw = Raw()
    max_completion_tokens: Raw = Raw()
    max_output_tokens: Raw = Raw()
    n: Raw = Raw()


BODY = msgspec.json.Decoder(Body)
TEXT = msgspec.json.Decoder(str)
PIECES = msgspec.json.Decoder(str | list[Part])
MESSAGES = msgspec.json.Decoder(list[Message])
TEXTS: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])
# As engines read them: pydantic takes "2" and 2.0 for 2.
COUNT: msgspec.json.Decoder[int] = msgspec.json.Decoder(Annotated[int, Meta(ge=1, le=1 << 31)], strict=False)
FIELDS = msgspec.json.Decoder(dict[str, Raw])


def outline_of_json(body: bytes) -> Outline:
    """Raises InvalidJson, and InvalidValue for a model or stream of another type."""
    read = decode(body, BODY)
    limits = (_as(raw, COUNT) for raw in (read.max_completion_tokens, read.max_output_tokens, read.max_tokens))
    return Outline(
        model=read.model or "",
        stream=bool(read.stream),
        user=_as(read.user, TEXT) or None,
        text="".join(_texts(read))[:LONGEST_TEXT],
        max_tokens=next((limit for limit in limits if limit is not None), UNSET),
        n=_as(read.n, COUNT) or 1,
    )


def rename_in_json(body: bytes, name: str) -> bytes:
    """Gives the body with another model. Order and values of all else stay byte for byte."""
    fields = decode(body, FIELDS)
    fields["model"] = Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)


def outline_of_form(body: bytes, *, media: str) -> Outline:
    """As for JSON, of a multipart form. Raises InvalidValue when it is none."""
    values = {name: body[start:end] for name, start, end in _parts(body, media) if name in (b"model", b"stream")}
    stream = values.get(b"stream", b"").strip().lower() in (b"true", b"1")
    return Outline(model=values.get(b"model", b"").decode("utf-8", "replace"), stream=stream)


def rename_in_form(body: bytes, name: str, *, media: str) -> bytes:
    """Gives the form with another model; all else stays byte for byte."""
    for field, start, end in _parts(body, media):
        if field == b"model":
            return b"".join((body[:start], name.encode(), body[end:]))
    return body


def _texts(read: Body) -> Iterator[str]:
    if read.tools:
        yield bytes(read.tools).decode("utf-8", "replace")
    for raw in (read.instructions, read.system, read.prompt, read.text, read.query):
        yield _text(raw)
    for raw in (read.messages, read.input):
        yield from _conversation(raw)
    yield _text(read.documents)


def _conversation(raw: Raw) -> Iterator[str]:
    messages = _as(raw, MESSAGES)
    if messages is None:
        yield _text(raw)
        return
    for message in messages:
        yield f"\n{message.role}: "
        if isinstance(message.content, str):
            yield message.content
        else:
            yield from (part.text for part in message.content or ())


def _text(raw: Raw) -> str:
    """Gives a text, or the texts of a list: of texts, or of parts. Empty for anything else."""
    pieces = _as(raw, PIECES)
    if isinstance(pieces, str):
        return pieces
    texts = [part.text for part in pieces] if pieces is not None else _as(raw, TEXTS)
    return "\n".join(texts or ())


def _as(raw: Raw, decoder: "msgspec.json.Decoder[T]") -> T | None:
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _parts(body: bytes, media: str) -> Iterator[tuple[bytes, int, int]]:
    """Gives name, begin and end of each part's content (RFC 7578). In one walk over the body."""
    found = BOUNDARY.search(media)
    if found is None:
        raise InvalidValue("the form's content-type names no boundary")
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    at = body.find(mark)
    for _ in range(MOST_PARTS):
        end = body.find(b"\r\n" + mark, at) if at >= 0 else -1
        if end < 0:
            return
        start = body.find(b"\r\n\r\n", at, min(end, at + PART_HEAD_BYTES))
        if start >= 0 and (name := PART_NAME.search(body, at, start)) is not None:
            yield name[1], start + 4, end
        at = end + 2
