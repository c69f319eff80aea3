"""`smg parse`: shows what the parsers make of a model's output. The flags are those of `smg.parser.command`."""

from smg.commands.arguments import Arguments
from smg.parser.command import add_arguments, main

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Gives the parser command's exit code."""
    parser = Arguments(prog="smg parse", description="Parses a model's output into content, reasoning and tool calls.")
    add_arguments(parser)
    return main(parser.read(arguments))
