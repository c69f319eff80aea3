from collections.abc import Callable, Iterable

from smg_ext.machine import Machine
from smg_ext.response import ResponseStream
from smg_ext.text import StopStrings, Vocabulary
from smg_ext.thoughts import ThoughtMarks
from smg_ext.wire import FieldTable

__all__ = ["ChatSink"]

class ChatSink(Machine):
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
        prefix: bytes,
        tail: bytes,
        write: Callable[[bytes], object],
        done: Callable[[str, int, str], object],
        kept: Iterable[int] = (),
        prompt_tail: Iterable[int] = (),
        unary: bool = False,
        marks: ThoughtMarks | None = None,
        in_think: bool = False,
        stream_thoughts: bool = True,
        hide_thoughts: bool = False,
        whole: bool = False,
    ) -> None: ...
    @property
    def last(self) -> bytes: ...
    def write_into(self, stream: ResponseStream) -> None: ...
