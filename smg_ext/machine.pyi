from collections.abc import Callable, Iterable

from smg_ext.sink import Sink
from smg_ext.text import StopStrings, Vocabulary
from smg_ext.thoughts import ThoughtMarks
from smg_ext.wire import FieldTable

__all__ = ["Machine"]

class Machine(Sink):
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
        done: Callable[[str, int, str], object],
        kept: Iterable[int] = (),
        prompt_tail: Iterable[int] = (),
        unary: bool = False,
        marks: ThoughtMarks | None = None,
        in_think: bool = False,
        stream_thoughts: bool = True,
    ) -> None: ...
    @property
    def answered(self) -> bool: ...
    @property
    def cut(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def usage(self) -> tuple[int, int, int]: ...
    @property
    def reasoning_tokens(self) -> int: ...
    def feed(self, *messages: bytes) -> None: ...
