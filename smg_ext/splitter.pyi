from collections.abc import Callable, Mapping
from typing import Any

from smg_ext.collector import Citing, Shapes
from smg_ext.grammar import Grammar

__all__ = ["Family", "Splitter"]

class Family:
    def __init__(
        self,
        *,
        starts: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        also_ends: tuple[str, ...] = (),
        layout: tuple[str, ...] = (),
        opens: tuple[str, ...] = (),
        strays: tuple[str, ...] = (),
        drops: tuple[str, ...] = (),
        bare: str = "",
        grammar: Grammar | None = None,
        spaces: bool = False,
        cited: bool = False,
    ) -> None: ...

class Splitter(Citing):
    def __init__(
        self,
        family: Family,
        *,
        in_think: bool = False,
        shapes: Shapes,
        schemas: Mapping[str, Any],
        new_id: Callable[[], str] | None = None,
        single: bool = False,
        forced: str = "",
    ) -> None: ...
