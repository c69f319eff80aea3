from collections.abc import Callable

from smg_ext.grammar import Grammar

__all__ = ["NamedGrammar"]

class NamedGrammar(Grammar):
    def __init__(
        self,
        *,
        header: Callable[[list[tuple[str, str]]], tuple[str, str | None] | None],
        sections: tuple[str, ...],
        begins: tuple[str, ...],
        inner: tuple[str, ...],
        ends: tuple[str, ...],
        closes: tuple[str, ...],
        literal: bool = False,
        quote: str = "",
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...
