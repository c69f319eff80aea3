"""What a tool-call family is: data. A new family that uses a known grammar is one entry in `smg.parser.tool.families`."""

from collections.abc import Callable

from msgspec import Struct

from smg.parser.tool.reader import MakeReader
from smg.registry import Registry

__all__ = ["TOOLS", "ToolSpec"]


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A family's format.

    `opens`: marks that begin a section of calls; `reader` reads it, given the mark. `bare`: characters that may begin a call at the start
    of a line, without a mark; only names of known tools count there. `strays`: marks that mean nothing outside a section and are
    not shown there. `inner`: further marks of a section. `drops`: the family's end of text, where it was decoded. `channels`, `citations`:
    see ReasoningSpec. `thinks`: the reasoning family that all models of this family have. `new_id`: the family's own style of ids, where
    the output names none.
    """

    reader: MakeReader | None = None
    opens: tuple[str, ...] = ()
    bare: str = ""
    strays: tuple[str, ...] = ()
    channels: str = ""
    inner: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    citations: bool = False
    thinks: str = ""
    new_id: Callable[[], str] | None = None


TOOLS: Registry[ToolSpec] = Registry("tool parser")
