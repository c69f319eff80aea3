"""What a reasoning family is: data. A new family that thinks between marks is one entry in `smg.parser.reasoning.families`."""

from msgspec import Struct

from smg.registry import Registry

__all__ = ["REASONING", "ReasoningSpec"]


class ReasoningSpec(Struct, frozen=True, kw_only=True):
    """A thinking block between marks.

    `also_ends`: marks that end the block and belong to what follows, such as the begin of a tool section. `layout`: marks around or inside
    the answer, dropped. `spaces`: white space beside the marks is layout too, not only newlines. `channels`: the whole output has a
    format of its own, read by the parser of that name. `citations`: text has Cohere's citation marks. `assumed`: the original takes the
    output to begin inside the block.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    also_ends: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    spaces: bool = False
    channels: str = ""
    citations: bool = False
    assumed: bool = False


REASONING: Registry[ReasoningSpec] = Registry("reasoning parser")
