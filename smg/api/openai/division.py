"""The body of a chat in two parts: its messages, in which requests differ, and the rest, which a client sends again each time.

The messages stay the bytes that they are until somebody has to read them: those that came before need not be read again. Called by
chat_request.py.
"""

import re

import msgspec
from msgspec import Struct

from smg._ext import NO_EXT, value_span

__all__ = ["NOBODY", "Division", "Names", "divided", "find_value", "plain_value_span"]

# Above this a body is mostly messages, and reading it twice would cost more than the checks.
SMALL_BYTES = 1 << 20
# May differ in each request of a client: what it calls itself and its request, all texts, and what has no effect.
NAMES = ("user", "rid", "request_id")
NAMES_AND_UNREAD = frozenset({*NAMES, "metadata", "prediction", "prompt_cache_key", "safety_identifier"})

SPACES = re.compile(rb"[ \n\r\t]*+")
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
SCALAR = re.compile(rb"[^\[\]{}, \n\r\t\"]++")
SKIPPED = re.compile(rb"[^\[\]{}\"]*+")


class Names(Struct, frozen=True):
    """What a client calls itself and its request."""

    user: str | None = None
    rid: str | None = None
    request_id: str | None = None


NOBODY = Names()


class Division(Struct, frozen=True):
    """`messages` is a JSON value as it was sent, not looked at yet; `rest`: all else but names, equal bytes meaning equal content."""

    messages: bytes
    names: Names
    rest: bytes


def divided(body: bytes) -> Division | None:
    """Gives the parts; None for a body that only the typed decoder can judge."""
    span = find_value(body, b"messages") if len(body) <= SMALL_BYTES else None
    if span is None:
        return None
    begin, end = span
    try:
        fields = msgspec.json.decode(body[:begin] + b"0" + body[end:])
    except (msgspec.DecodeError, RecursionError):
        return None
    del fields["messages"]
    names = NOBODY
    if not NAMES_AND_UNREAD.isdisjoint(fields):
        given = [fields.get(name) for name in NAMES]
        if not all(value is None or type(value) is str for value in given):
            return None
        names = Names(*given)
        fields = {name: value for name, value in fields.items() if name not in NAMES_AND_UNREAD}
    return Division(body[begin:end], names, msgspec.json.encode(fields))


def plain_value_span(body: bytes, name: bytes) -> tuple[int, int] | None:
    """Gives begin and end of the value that the object in `body` has under `name`.

    None when it has none or several, when a key is written with an escape, and when there is no object or it does not end. What is within
    the values is not checked.
    """
    found: list[tuple[int, int]] = []
    at = _after_spaces(body, 0)
    if body[at : at + 1] != b"{":
        return None
    at = _after_spaces(body, at + 1)
    while key := TEXT.match(body, at):
        at = _after_spaces(body, key.end())
        if b"\\" in key[0] or body[at : at + 1] != b":":
            return None
        at = _after_spaces(body, at + 1)
        end = _after_value(body, at)
        if end is None:
            return None
        if key[0][1:-1] == name:
            found.append((at, end))
        at = _after_spaces(body, end)
        if body[at : at + 1] != b",":
            break
        at = _after_spaces(body, at + 1)
    whole = body[at : at + 1] == b"}" and _after_spaces(body, at + 1) == len(body)
    return found[0] if whole and len(found) == 1 else None


def _after_spaces(body: bytes, at: int) -> int:
    match = SPACES.match(body, at)
    return match.end() if match else at


def _after_value(body: bytes, at: int) -> int | None:
    """The place after a value that begins here; None when it does not end, or there is none."""
    scalar = SCALAR.match(body, at)
    if scalar:
        at = scalar.end()
        return at if at < len(body) and body[at] not in b'[{"' else None
    if body[at : at + 1] == b'"':
        text = TEXT.match(body, at)
        return text.end() if text else None
    return _after_brackets(body, at) if body[at : at + 1] in (b"[", b"{") else None


def _after_brackets(body: bytes, at: int) -> int | None:
    depth = 0
    while at < len(body):
        if body[at] == 0x22:
            text = TEXT.match(body, at)
            if text is None:
                return None
            at = text.end()
        else:
            depth += 1 if body[at] in b"[{" else -1
            at += 1
            if depth == 0:
                return at
        skipped = SKIPPED.match(body, at)
        at = skipped.end() if skipped else at
    return None


find_value = plain_value_span if NO_EXT else value_span
