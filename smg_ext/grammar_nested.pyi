from collections.abc import Callable
from typing import Any

from smg_ext.grammar import Grammar

__all__ = ["NestedGrammar"]

class NestedGrammar(Grammar):
    def __init__(
        self,
        *,
        mark: str,
        inner_of: Callable[[Any, str, Any], Any],
        kinds_in: Callable[[Any, Any], frozenset[str]],
        as_json: Callable[[str, frozenset[str]], str],
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...
