"""`smg sim`: starts a simulated engine, which runs until it is told to stop. The flags are those of `smg.sim.options`."""

from smg.commands.arguments import Arguments
from smg.sim.command import add_arguments, main

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Gives the simulator's exit code."""
    parser = Arguments(prog="smg sim", description="Starts a simulated engine that speaks an engine protocol.")
    add_arguments(parser)
    return main(parser.read(arguments))
