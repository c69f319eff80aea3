"""What one token contributes to the decoded text. In: the decoder part of a tokenizer.json and a token's name; out: bytes or text a token.

A decoder is a chain of steps. Those that look at one token alone are applied here, once a token; what looks across tokens (joining bytes,
stripping the start of the whole text) is left to `decoder.py`. The steps are those of huggingface/tokenizers, `tokenizers/src/decoders`.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from smg.types.json import Json, JsonObject

__all__ = ["ALPHABET", "BYTE_NAMES", "Plan", "plan_of"]

# A step on one token: its text and whether it is the first one of the output.
Step = Callable[[str, bool], str]

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
WORDPIECE_CLEANUPS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of GPT-2's byte-level BPE: openai/gpt-2 `encoder.py`, bytes_to_unicode."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


ALPHABET = _byte_alphabet()
BYTE_NAMES = [name for name, _ in sorted(ALPHABET.items(), key=lambda item: item[1])]  # the stand-in of each byte


class Plan(Struct, frozen=True, kw_only=True):
    """A decoder's steps, sorted by what they need to know.

    kind      `bytes`: every token is bytes and all bytes are decoded as one UTF-8 text; `text`: tokens are text; `unknown`: ask the
    library.
    before    steps on single tokens before `fallback`
    fallback  `<0xXX>` names are bytes, and a run of them is either valid UTF-8 or as many U+FFFD as it has bytes
    after     steps on single tokens, or whole runs, after it
    strip     `(character, how often)` removed from the start of the whole text
    suffix    the end-of-word mark of a BPEDecoder: a space, but nothing on the last token
    placed    True when a token's part depends on whether it is the first
    """

    kind: Literal["bytes", "text", "unknown"]
    before: tuple[Step, ...] = ()
    fallback: bool = False
    after: tuple[Step, ...] = ()
    strip: tuple[str, int] = ("", 0)
    suffix: str = ""
    placed: bool = False

    def piece(self, name: str, *, first: bool) -> str | bytes:
        """Gives a token's part of the text, or its bytes when it stands for bytes."""
        for step in self.before:
            name = step(name, first)
        if self.kind == "bytes":
            return _bytes_of(name)
        if self.fallback and (match := BYTE_TOKEN.match(name)):
            return bytes((int(match[1], 16),))
        return self.finish(name, first=first)

    def finish(self, text: str, *, first: bool) -> str:
        """Applies the steps after byte fallback to one token, or to one run of byte tokens."""
        for step in self.after:
            text = step(text, first)
        return text


def _bytes_of(name: str) -> bytes:
    try:
        return bytes(map(ALPHABET.__getitem__, name))
    except KeyError:  # an added token's name is its text
        return name.encode()


def plan_of(decoder: bytes | None) -> Plan:
    """Reads a decoder's JSON; None is a tokenizer without one, whose tokens are joined by spaces."""
    if decoder is None:
        return Plan(kind="text", before=(lambda name, first: name if first else f" {name}",), placed=True)
    steps = _flat(msgspec.json.decode(decoder))
    if steps and steps[-1].get("type") == "ByteLevel":
        before = [_single(step) for step in steps[:-1]]
        return Plan(kind="bytes", before=_known(before)) if None not in before else Plan(kind="unknown")
    return _text_plan(steps)


def _flat(step: Json) -> list[JsonObject]:
    if not isinstance(step, dict):
        return []
    parts = step.get("decoders")
    if step.get("type") == "Sequence" and isinstance(parts, list):
        return [flat for part in parts for flat in _flat(part)]
    return [step]


def _text_plan(steps: list[JsonObject]) -> Plan:
    kinds = [step.get("type") for step in steps]
    if kinds == ["BPEDecoder"]:
        return Plan(kind="text", suffix=str(steps[0].get("suffix") or ""))
    strip = ("", 0)
    if "Fuse" in kinds:
        whole = steps[kinds.index("Fuse") + 1 :]
        steps = steps[: kinds.index("Fuse")]
        if len(whole) > 1 or (whole and (whole[0].get("type") != "Strip" or whole[0].get("stop"))):
            return Plan(kind="unknown")
        if whole:
            strip = (str(whole[0].get("content") or ""), _number(whole[0].get("start")))
    kinds = [step.get("type") for step in steps]
    cut = kinds.index("ByteFallback") if "ByteFallback" in kinds else len(steps)
    before, after = [_single(step) for step in steps[:cut]], [_single(step) for step in steps[cut + 1 :]]
    if None in before or None in after:
        return Plan(kind="unknown")
    placed = not {"Metaspace", "WordPiece"}.isdisjoint(map(str, kinds))
    return Plan(kind="text", before=_known(before), fallback=cut < len(steps), after=_known(after), strip=strip, placed=placed)


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _known(steps: list[Step | None]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step is not None)


def _single(step: JsonObject) -> Step | None:
    """A step that looks at one token alone, or None when it is of another kind."""
    match step.get("type"):
        case "Replace":
            return _replace(step)
        case "Metaspace":
            return _metaspace(step)
        case "WordPiece":
            return _wordpiece(step)
        case "Strip":
            return _strip(str(step.get("content") or ""), _number(step.get("start")), _number(step.get("stop")))
    return None


def _replace(step: JsonObject) -> Step | None:
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or not isinstance(old := pattern.get("String"), str):
        return None
    new = str(step.get("content") or "")
    return lambda name, first: name.replace(old, new)


def _metaspace(step: JsonObject) -> Step:
    mark = str(step.get("replacement") or "▁")
    keeps = step.get("prepend_scheme") == "never" or step.get("add_prefix_space") is False

    def metaspace(name: str, first: bool) -> str:
        return name.replace(mark, "" if first and not keeps else " ")

    return metaspace


def _wordpiece(step: JsonObject) -> Step:
    prefix, cleanup = str(step.get("prefix") or "##"), step.get("cleanup") is not False

    def wordpiece(name: str, first: bool) -> str:
        if not first:
            name = name[len(prefix) :] if name.startswith(prefix) else f" {name}"
        for old, new in WORDPIECE_CLEANUPS if cleanup else ():
            name = name.replace(old, new)
        return name

    return wordpiece


def _strip(character: str, start: int, stop: int) -> Step:
    def strip(name: str, first: bool) -> str:
        for _ in range(start):
            name = name.removeprefix(character)
        for _ in range(stop):
            name = name.removesuffix(character)
        return name

    return strip
