from collections.abc import Callable, Iterable
from typing import Any

from smg_ext.collector import Collector
from smg_ext.machine import Machine
from smg_ext.text import StopStrings, Vocabulary
from smg_ext.thoughts import ThoughtMarks
from smg_ext.wire import FieldTable

__all__ = ["EventShapes", "EventSink"]

class EventShapes:
    def __init__(
        self,
        *,
        content: Callable[[int, str], object],
        reasoning: Callable[[int, str], object],
        call: Callable[[int, int, str, str], object],
        arguments: Callable[[int, int, str], object],
        finished: Callable[[int, Any, str | int | None], object],
        new_id: Callable[[], str],
    ) -> None: ...

class EventSink(Machine):
    def __init__(
        self,
        table: FieldTable,
        vocabulary: Vocabulary,
        stops: StopStrings | None,
        *,
        choices: int,
        ends: Iterable[int],
        reported: Iterable[int],
        min_tokens: int,
        skip_special: bool,
        include_stop: bool,
        prompt_tokens: int,
        take: Callable[[list[Any]], object],
        shapes: EventShapes,
        done: Callable[[str, int, str], object],
        kept: Iterable[int] = (),
        prompt_tail: Iterable[int] = (),
        unary: bool = False,
        marks: ThoughtMarks | None = None,
        in_think: bool = False,
        stream_thoughts: bool = True,
        parsers: tuple[Collector, ...] = (),
        split: bool = False,
        gather: bool = False,
    ) -> None: ...
