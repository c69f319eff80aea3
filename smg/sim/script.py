"""What an engine shall generate and how it shall misbehave: options and a prompt's `[[sim: …]]` marker come in, a `Script` goes out.

A marker holds `key=value` pairs; values with spaces are JSON strings in double quotes:
`[[sim: tokens=40 fault=rst@3 ttft_ms=200 text="Bonjour !"]]`. Faults are `KIND[:CODE][@TOKENS]`. Called by the scheduler for each request.
"""

import json
import re
from typing import Literal, TypeAlias, cast, get_args

import msgspec
from msgspec import Struct

from smg.sim.options import SimOptions

__all__ = ["MARKER", "Fault", "FaultKind", "Script", "ScriptError", "parse_fault", "parse_marker", "script_from_options"]

FaultKind: TypeAlias = Literal["late", "hang", "rst", "goaway", "die", "error", "end"]

MARKER = re.compile(r"\[\[sim:([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\]")
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)')
_FAULT = re.compile(r"([a-z]+)(?::(\w+))?(?:@(\d+))?")


class ScriptError(ValueError):
    """A marker or fault that cannot be understood; the text says what."""


class Fault(Struct, frozen=True, kw_only=True):
    """`kind` happens once `at` tokens of choice 0 were made. `code`: gRPC status name of `error`, HTTP/2 error of `rst` and `goaway`.
    `said`: the words of `error`.

    late: the first token comes `code` ms late. hang: no more tokens, the call stays open. rst: RST_STREAM. goaway: GOAWAY, then the
    connection closes. die: the whole engine goes away. error: a gRPC status. end: the stream ends OK with its last message missing.
    """

    kind: FaultKind
    at: int = 0
    code: str = ""
    said: str = "simulated fault"


class Script(Struct, frozen=True, kw_only=True):
    """One request's script; see the options of the same names. `eos` False: the output is repeated up to max_tokens."""

    output: Literal["echo", "text", "ids", "tool"] = "echo"
    text: str = ""
    ids: tuple[int, ...] = ()
    tool: str = "get_weather"
    tool_format: str = "hermes"
    think: str = ""
    tokens: int = 0
    eos: bool = True
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    slow: float = 1.0
    fault: Fault | None = None


def parse_fault(text: str) -> Fault:
    """Reads `KIND[:CODE][@TOKENS]`; ScriptError when it is not one."""
    match = _FAULT.fullmatch(text)
    if not match or match[1] not in get_args(FaultKind):
        raise ScriptError(f"not a fault: {text!r}; kinds are {', '.join(get_args(FaultKind))}")
    return Fault(kind=cast(FaultKind, match[1]), code=match[2] or "", at=int(match[3] or 0))


def script_from_options(options: SimOptions, *, text: str, ids: tuple[int, ...]) -> Script:
    """Gives the script of a request without marker. `text` and `ids` are the contents of what the options name. The fault is not in it."""
    return Script(
        output=options.output,
        text=text,
        ids=ids,
        tool=options.tool,
        tool_format=options.tool_format,
        think=options.think,
        tokens=options.tokens,
        ttft_ms=options.ttft_ms,
        itl_ms=options.itl_ms,
    )


def parse_marker(text: str, *, base: Script) -> Script:
    """Gives `base` changed by the last marker in `text`; without one, `base` itself. ScriptError for an unknown key or bad value."""
    bodies = MARKER.findall(text)
    if not bodies:
        return base
    body = bodies[-1]
    pairs = {match[1]: _unquote(match[2]) for match in _PAIR.finditer(body)}
    if _PAIR.sub("", body).strip():
        raise ScriptError(f"cannot read the marker near {_PAIR.sub('', body).strip()!r}")
    changes: dict[str, object] = {}
    for key, value in pairs.items():
        changes.update(_change(key, value))
    if "output" not in changes:
        changes.update(_implied(pairs))
    fault = changes.get("fault")
    if isinstance(fault, Fault) and fault.kind == "late":
        changes["ttft_ms"] = float(fault.code or 1000)
    return msgspec.structs.replace(base, **changes)


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError as error:
        raise ScriptError(f"not a JSON string: {value}") from error


def _change(key: str, value: str) -> dict[str, object]:
    """Gives the field that a pair sets."""
    if key == "fault":
        return {"fault": parse_fault(value)}
    if key not in Script.__struct_fields__:
        raise ScriptError(f"unknown key {key!r}")
    if key == "ids":
        return {"ids": tuple(int(part) for part in value.split(",") if part.strip().isdigit())}
    kind = msgspec.structs.fields(Script)[Script.__struct_fields__.index(key)].type
    try:
        return {key: msgspec.convert(value, kind, strict=False)}
    except msgspec.ValidationError as error:
        raise ScriptError(f"{key}: {error}") from error


def _implied(pairs: dict[str, str]) -> dict[str, object]:
    """Gives the kind of output that the other keys mean."""
    if "tool" in pairs:
        return {"output": "tool"} if "text" in pairs else {"output": "tool", "text": ""}
    if "ids" in pairs:
        return {"output": "ids"}
    return {"output": "text"} if "text" in pairs else {}
