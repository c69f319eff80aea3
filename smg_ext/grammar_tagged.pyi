from collections.abc import Callable
from typing import Any

from smg_ext.grammar import Grammar

__all__ = ["TaggedGrammar"]

class TaggedGrammar(Grammar):
    def __init__(
        self,
        *,
        matchers: tuple[tuple[str, ...], ...],
        name_of: Callable[[str], str],
        key_of: Callable[[str, Any], tuple[str, frozenset[str]]],
        as_json: Callable[[str, frozenset[str]], str],
        call_open: str,
        call_close: str,
        parameter_open: str,
        parameter_close: str,
        name_ends: tuple[str, ...],
        key_end: str,
        value_open: str,
        closes: tuple[str, ...],
        noise: tuple[str, ...],
        cdata: str,
        trim: bool,
        attributes: bool,
        id_form: str,
        sectioned: bool,
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...
