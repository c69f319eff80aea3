from collections.abc import Callable, Mapping
from typing import Any

from smg_ext.collector import Collector, Shapes
from smg_ext.grammar import Grammar
from smg_ext.marks import MarkSet

__all__ = ["Functionary", "Inkling"]

class Inkling(Collector):
    def __init__(
        self,
        marks: MarkSet,
        grammar: Grammar,
        *,
        thoughts: bool,
        calls: bool,
        in_think: bool,
        shapes: Shapes,
        schemas: Mapping[str, Any],
        new_id: Callable[[], str] | None = None,
        single: bool = False,
        forced: str = "",
    ) -> None: ...

class Functionary(Collector):
    def __init__(
        self,
        marks: MarkSet,
        *,
        calls: bool,
        shapes: Shapes,
        schemas: Mapping[str, Any],
        new_id: Callable[[], str] | None = None,
        single: bool = False,
        forced: str = "",
    ) -> None: ...
