from collections.abc import Callable, Iterable
from typing import TypeAlias

from smg_ext.machine import Machine
from smg_ext.text import StopStrings, Vocabulary
from smg_ext.thoughts import ThoughtMarks
from smg_ext.wire import FieldTable

__all__ = ["EventSink"]

_Record: TypeAlias = tuple[int, str | list[str] | list[tuple[bool, str]], tuple[str, str | int | None] | None]

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
        take: Callable[[list[_Record]], object],
        done: Callable[[str, int, str], object],
        kept: Iterable[int] = (),
        prompt_tail: Iterable[int] = (),
        unary: bool = False,
        marks: ThoughtMarks | None = None,
        in_think: bool = False,
        stream_thoughts: bool = True,
        split: bool = False,
        gather: bool = False,
    ) -> None: ...
