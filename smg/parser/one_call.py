"""Holds a parser to one call, as `parallel_tool_calls: false` promises, whatever the model writes. Built by `smg.parser.build`."""

from smg.parser.base import Call, Parser, Piece

__all__ = ["OneCall"]


class OneCall(Parser):
    """Passes pieces on until a second call begins. From there nothing is: the answer is what came before, as if the model had stopped."""

    def __init__(self, parser: Parser) -> None:
        self._ended = False
        self._parser = parser

    @property
    def ended(self) -> bool:
        """See Parser. The engine may stop as well."""
        return self._ended

    def feed(self, text: str) -> list[Piece]:
        """See Parser."""
        return [] if self._ended else self._first(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """See Parser."""
        return [] if self._ended else self._first(self._parser.finish())

    def _first(self, pieces: list[Piece]) -> list[Piece]:
        for at, piece in enumerate(pieces):
            if isinstance(piece, Call) and piece.index:
                self._ended = True
                return pieces[:at]
        return pieces
