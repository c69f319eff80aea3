"""The command `smg sim`: flags come in, a simulated engine runs until SIGTERM or SIGINT. The flags are made of `SimOptions`."""

import argparse
import asyncio
import signal
import sys
from typing import Any, get_args

import msgspec
from msgspec import structs
from msgspec.inspect import BoolType, LiteralType, Metadata, type_info

from smg.sim.options import SimOptions
from smg.sim.server import Sim, open_sim

__all__ = ["add_arguments", "main", "options_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each option: `--` and its name with dashes; a switch that is on by default becomes `--no-…`."""
    for field in structs.fields(SimOptions):
        flag = "--" + field.name.replace("_", "-")
        info = type_info(field.type)
        text = _description(field.type) + _default(field.default)
        kind = info.type if isinstance(info, Metadata) else info
        if isinstance(kind, BoolType):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default, help=text)
        elif isinstance(kind, LiteralType):
            parser.add_argument(flag, choices=[str(value) for value in kind.values], default=field.default, help=text)
        else:
            metavar = "TEXT" if isinstance(field.default, str) else "N"
            parser.add_argument(flag, type=type(field.default), default=field.default, metavar=metavar, help=text)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return " (on)" if value else " (off)"
    return f" ({value:g})" if isinstance(value, float) else f" ({value})" if value != "" else ""


def options_from(args: argparse.Namespace) -> SimOptions:
    """Gives the options that were parsed; msgspec.ValidationError when a value is out of range."""
    values = {field.name: getattr(args, field.name) for field in structs.fields(SimOptions)}
    return msgspec.convert(values, SimOptions)


def main(args: argparse.Namespace) -> int:
    """Runs the engine; prints `ready URL` once it serves. Gives 0 after a signal, 2 when it cannot start."""
    try:
        return asyncio.run(_serve(options_from(args)))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"smg sim: {error}", file=sys.stderr)
        return 2


async def _serve(options: SimOptions) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sim: Sim = await open_sim(options, own_process=True)
    print(f"ready {sim.url}" + (f" status {sim.status_url}" if sim.status_url else ""), flush=True)
    await stop.wait()
    await sim.close()
    return 0


def _description(annotated: Any) -> str:
    """Gives the description in an `Annotated[…, Meta]`."""
    return next((part.description for part in get_args(annotated)[1:] if isinstance(part, msgspec.Meta) and part.description), "").replace(
        "%", "%%"
    )
