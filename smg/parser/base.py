"""What a parser of model output is: text in, in any division; pieces out, whose join does not depend on the division."""

from abc import abstractmethod
from typing import Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Call", "CallArguments", "Parser", "Piece", "Text", "Thought"]


class Text(Struct, frozen=True):
    """Visible text."""

    text: str


class Thought(Struct, frozen=True):
    """Text of the thinking block, without its marks."""

    text: str


class Call(Struct, frozen=True):
    """A tool call begins; its whole name is known. `id` is None where the family gives none: the caller then makes one."""

    index: int
    name: str
    id: str | None = None


class CallArguments(Struct, frozen=True):
    """The next piece of a call's arguments; joined they are one JSON text."""

    index: int
    text: str


Piece: TypeAlias = Text | Thought | Call | CallArguments


class Parser(Protocol):
    """One choice's parser, native or not. Linear in its input; holds back only what may be the beginning of a mark."""

    @property
    def ended(self) -> bool:
        """True once nothing more can come, whatever the model writes."""
        return False

    @abstractmethod
    def feed(self, text: str) -> list[Piece]:
        """Gives the pieces that became certain with this text."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """Gives what is left at the end of the output; nothing that was fed is silently lost."""
