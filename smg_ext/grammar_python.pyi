from collections.abc import Callable

from smg_ext.grammar import Grammar

__all__ = ["LiteralGrammar", "PythonGrammar"]

class PythonGrammar(Grammar):
    def __init__(
        self,
        *,
        closes: tuple[str, ...],
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...

class LiteralGrammar(Grammar):
    def __init__(
        self, inner: Grammar, *, marks: tuple[str, ...] = (), without_marks: Callable[[str, str, tuple[str, ...]], str]
    ) -> None: ...
