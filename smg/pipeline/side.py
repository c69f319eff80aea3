"""One thread beside the event loop, for work of a millisecond or so: long prompts are rendered and encoded there.

In: a function and its arguments; out: a future of the running loop. Costs a fraction of an executor's way, hardly anything when many wait.
Owned by the model directory. One thread, for the quick encoder keeps what it saw once a thread; a thread that made the process grow is
replaced by a new one, with which that memory goes.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeAlias, TypeVar

__all__ = ["INLINE_CHARACTERS", "SideThread", "resident_bytes", "trim_memory"]

P = ParamSpec("P")
T = TypeVar("T")
Task: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[T]", Callable[[], T]]

# Below this many characters rendering and encoding take under a millisecond whatever the text: prose takes 5 ns a character, words never
# seen before 50, random Chinese 250, random characters of every script 420. Above, they leave the event loop.
INLINE_CHARACTERS = 2048
LOOK_TASKS = 64  # between two looks at the process's memory
GROWTH_BYTES = 64 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SideThread:
    """Runs one task after the other. `renewals`: how often the thread was replaced."""

    def __init__(self, *, growth_bytes: int = GROWTH_BYTES) -> None:
        self._tasks: SimpleQueue[Task[object] | None] = SimpleQueue()
        self._growth_bytes = growth_bytes
        self._thread: Thread | None = None
        self._closed = False
        self.renewals = 0

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Gives a future of what `work` gives or raises. One that is cancelled before its turn is not run."""
        if self._closed:
            raise RuntimeError("the thread was closed")
        if self._thread is None:
            self._start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._tasks.put((loop, future, lambda: work(*args, **kwargs)))  # type: ignore[arg-type]  # a task keeps its own type
        return future

    def close(self) -> None:
        """Ends the thread after the task at hand; whoever still waits then waits in vain, so the loop must be about to end."""
        self._closed = True
        self._tasks.put(None)

    def _start(self) -> None:
        self._thread = Thread(target=self._work, name="smg-side", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        done, before = 0, resident_bytes()
        while (task := self._tasks.get()) is not None:
            _run(*task)
            del task  # while the thread waits for the next one
            done += 1
            if done % LOOK_TASKS == 0 and resident_bytes() > before + self._growth_bytes:
                self.renewals += 1
                self._start()
                return


def _run(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", work: Callable[[], T]) -> None:
    if future.cancelled():
        return
    try:
        result = work()
    except BaseException as error:  # whatever it is, it belongs to who waits: a panic of a Rust library is no Exception
        _tell(loop, _fail, future, error)
    else:
        _tell(loop, _settle, future, result)


def _tell(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(settle, *args)
    except RuntimeError:  # the loop is closed: nobody waits
        return


def _settle(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def resident_bytes() -> int:
    """Gives the memory that the process has in use, 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def trim_memory() -> None:
    """Gives memory that was freed back to the system, as the C library does not by itself after the load of a large file."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
    if trim is not None:
        trim(0)
