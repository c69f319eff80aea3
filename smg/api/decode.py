"""Bytes of a request body → typed struct, with errors that a person can use. Called by every handler that takes a body.

Rules for odd JSON: of duplicate keys the last one counts (as in the reference clients' languages), lone surrogates and bytes that are not
UTF-8 are refused where they stand in anything that is read, NaN is refused, unknown fields are ignored.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from smg.errors import InvalidJson, InvalidValue, SmgError

__all__ = ["MAX_DEPTH", "check_depth", "convert", "decode", "described", "no_json", "parsed"]

T = TypeVar("T")

# Deeper than any schema in use, and far from Python's recursion limit, which templates and serialisers would meet.
MAX_DEPTH = 200

# A broken body up to this size is looked at a second time, to say where it is broken.
EXPLAINED_BYTES = 1 << 20

# Bodies above this size are parsed in a thread.
INLINE_BYTES = 1 << 16

WORDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "array": "a list", "object": "an object"}
EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")
MISSING = re.compile(r"Object missing required field `([^`]*)`")
SURPLUS = re.compile(r"Object contains unknown field `([^`]*)`")
UNKNOWN = re.compile(r"Invalid (?:enum )?value '?([^']*)'?")
PLACE = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Gives the struct. Raises InvalidJson with the place of the fault, InvalidValue with the field's name."""
    if not body:
        raise InvalidJson("the body is empty; it must be a JSON object")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise described(error) from error
    except msgspec.DecodeError as error:
        raise _explained(body, str(error)) from error
    except RecursionError as error:
        raise InvalidJson("the body is nested too deeply") from error


async def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """Runs a parser where it belongs: small bodies on the loop, large ones beside it."""
    return parse(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(parse, body)


def convert(value: object, wanted: type[T], *, at: str = "") -> T:
    """Checks a part that was decoded untyped. `at` is its place in the body, as error messages shall name it."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise described(error, at=at) from error
    except RecursionError as error:
        raise InvalidValue(f"{at or 'the body'} is nested too deeply", param=at or None) from error


def described(error: msgspec.ValidationError, *, at: str = "") -> SmgError:
    """Gives our own words for what msgspec found."""
    text = str(error)
    place = PLACE.search(text)
    param = _joined(at, place[1] if place else "")
    name = param or "the body"
    if missing := MISSING.search(text):
        field = _joined(param, "." + missing[1])
        return InvalidValue(f"{field} is required", param=field)
    if surplus := SURPLUS.search(text):
        field = _joined(param, "." + surplus[1])
        return InvalidValue(f"{field[:80]!r} is not supported", param=field[:80])
    if expected := EXPECTED.search(text):
        wanted = " or ".join(WORDS.get(word, word) for word in expected[1].split(" | ") if word != "null")
        got = WORDS.get(expected[2] or "", expected[2] or "")
        return InvalidValue(f"{name} must be {wanted}" + (f", not {got}" if got else ""), param=param or None)
    if unknown := UNKNOWN.search(text):
        return InvalidValue(f"{name} has the unknown value {unknown[1][:80]!r}", param=param or None)
    if "out of range" in text:
        return InvalidValue(f"{name} is a number out of range", param=param or None)
    return InvalidValue(f"{name} is not valid", param=param or None)


def no_json(error: msgspec.DecodeError) -> str:
    """Says of a text that is no JSON where it fails."""
    found = str(error).removeprefix("JSON is malformed: ")
    return f"it is no JSON: {found[:1].lower()}{found[1:]}"


def check_depth(value: object, *, body: bytes, at: str) -> None:
    """Refuses an object that is nested deeper than MAX_DEPTH. Costs nothing for bodies with few brackets."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidValue(f"{at} is nested deeper than {MAX_DEPTH} levels", param=at)
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = inner


def _joined(at: str, place: str) -> str:
    return (at + place.replace("[...]", "")).strip(".")


def _explained(body: bytes, found: str) -> InvalidJson:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return InvalidJson(f"the body is not UTF-8: bad byte at position {error.start}")
    if len(body) > EXPLAINED_BYTES:
        position = re.search(r"byte (\d+)", found)
        return InvalidJson("the body is not valid JSON" + (f" at byte {position[1]}" if position else ""))
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        return InvalidJson(
            f"the body is not valid JSON: {error.msg[0].lower()}{error.msg[1:]} at line {error.lineno}, column {error.colno}"
        )
    except (ValueError, RecursionError):
        return InvalidJson("the body is not valid JSON")
    return InvalidJson("the body is not valid JSON: a \\u escape is one half of a surrogate pair without the other")


def _no_constant(name: str) -> float:
    raise json.JSONDecodeError(f"{name} is not a JSON number", name, 0)
