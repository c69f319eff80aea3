"""`smg parse`: text that a model wrote becomes thoughts, text and tool calls, as the gateway would send them. For whoever debugs a model.

One output (`FILE` or standard input), or with --jsonl many, a line each, in one process. What it prints is a contract with outside checks.
Called by the command line.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import structs

from smg.parser.whole import ParseCase, parse
from smg.types.event import Event

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--tool-call-parser", metavar="NAME", help="tool family; hermes when tools are given and nothing is named")
    parser.add_argument("--reasoning-parser", metavar="NAME", help="reasoning family")
    parser.add_argument("--tools", metavar="FILE", help="JSON list of tools; without tools no tool parser runs")
    parser.add_argument("--in-think", action="store_true", help="the prompt opened the thinking block; else the output tells")
    parser.add_argument("--events", action="store_true", help="print each event as it leaves, a line each, before the result")
    parser.add_argument("--jsonl", metavar="FILE", help="many outputs, a JSON object a line; - reads standard input")
    parser.add_argument("file", metavar="FILE|-", nargs="?", help="text, or a JSON list of deltas; - reads standard input")


def main(args: argparse.Namespace) -> int:
    """Runs the command. Gives 0; 1 when a line of --jsonl was no case; 2 when the command itself makes no sense."""
    if (args.file is None) == (args.jsonl is None):
        return _complain("give FILE (- is standard input), or --jsonl FILE")
    if args.jsonl is not None:
        return _parse_lines(args.jsonl)
    try:
        case = _case(args)
    except (OSError, ValueError) as error:
        return _complain(str(error))
    show = _print_event if args.events else None
    try:
        parsed = parse(case, show=show)
    except KeyError as error:
        return _complain(str(error.args[0]))
    _print(msgspec.to_builtins(parsed))
    return 0


def _case(args: argparse.Namespace) -> ParseCase:
    text = _read(args.file)
    tools = None
    if args.tools is not None:
        tools = msgspec.json.decode(_read(args.tools), type=tuple[dict[str, object], ...])
    case = ParseCase(
        raw=text,
        tools=tools,
        tool_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        prompt_opened_reasoning=True if args.in_think else None,
    )
    deltas = _deltas(text)
    return case if deltas is None else structs.replace(case, raw=None, deltas=deltas)


def _deltas(text: str) -> tuple[str, ...] | None:
    """The deltas if the text is a JSON list of strings; None when it is the output itself."""
    if not text.lstrip().startswith("["):
        return None
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError:
        return None


def _read(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def _parse_lines(name: str) -> int:
    if name == "-":
        return _parse_stream(sys.stdin.buffer)
    try:
        stream = open(name, "rb")  # noqa: SIM115  closed below
    except OSError as error:
        return _complain(str(error))
    with stream:
        return _parse_stream(stream)


def _parse_stream(stream: BinaryIO) -> int:
    status = 0
    for number, line in enumerate(stream, 1):
        if line.strip():
            status |= _parse_line(line, number)
    return status


def _parse_line(line: bytes, number: int) -> int:
    try:
        case = msgspec.json.decode(line, type=ParseCase)
    except msgspec.DecodeError as error:
        _print({"id": _id_of(line), "error": f"line {number}: {error}"})
        return 1
    try:
        parsed = parse(case)
    except KeyError as error:
        _print({"id": case.id, "error": str(error.args[0])})
        return 1
    _print({"id": case.id, **msgspec.to_builtins(parsed)})
    return 0


def _id_of(line: bytes) -> object:
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return value.get("id") if isinstance(value, dict) else None


def _print_event(event: Event) -> None:
    fields = {key: value for key, value in msgspec.to_builtins(event).items() if key not in ("choice", "logprobs")}
    _print({"event": type(event).__name__, **fields})


def _print(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _complain(message: str) -> int:
    print(f"smg parse: {message}", file=sys.stderr)
    return 2
