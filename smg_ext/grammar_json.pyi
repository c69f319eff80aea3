from collections.abc import Callable

from smg_ext.grammar import Grammar

__all__ = ["JsonGrammar"]

class JsonGrammar(Grammar):
    def __init__(
        self,
        *,
        closes: tuple[str, ...],
        names: tuple[str, ...],
        arguments: tuple[str, ...],
        id_key: str,
        keyed: bool,
        separators: str,
        others: tuple[str, ...],
        decoded: Callable[[str], str],
        unwrapped: Callable[[str], str],
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...
