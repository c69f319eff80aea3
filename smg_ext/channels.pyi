from collections.abc import Callable, Mapping
from typing import Any

from smg_ext.collector import Collector, Shapes
from smg_ext.marks import MarkSet
from smg_ext.splitter import Family, Splitter

__all__ = ["Harmony", "HarmonyMarks", "Muse"]

class HarmonyMarks:
    def __init__(
        self,
        marks: tuple[str, ...],
        *,
        destination: Callable[[list[str], list[str], Any], tuple[str, bool]],
        said_before: Callable[[str], str | None],
        recipients: Callable[[list[str]], list[str]],
        is_header_word: Callable[[str], bool],
    ) -> None: ...

class Harmony(Collector):
    def __init__(
        self,
        format: HarmonyMarks,
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

class Muse(Splitter):
    def __init__(
        self,
        family: Family,
        *,
        messages: MarkSet,
        thoughts: bool,
        began_thinking: bool,
        shapes: Shapes,
        schemas: Mapping[str, Any],
        new_id: Callable[[], str] | None = None,
        single: bool = False,
        forced: str = "",
    ) -> None: ...
