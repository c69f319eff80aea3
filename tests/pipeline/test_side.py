"""The thread beside the loop: results, errors and cancelled work arrive where they belong; a thread that grew is replaced."""

import asyncio
import threading

import pytest

from smg.pipeline.side import LOOK_TASKS, SideThread, resident_bytes, trim_memory


def test_results_and_errors_arrive() -> None:
    async def run() -> None:
        side = SideThread()
        assert await side.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await side.run(divmod, 7, 0)
        names = await asyncio.gather(*(side.run(lambda: threading.current_thread().name) for _ in range(50)))
        assert set(names) == {"smg-side"}
        side.close()
        with pytest.raises(RuntimeError, match="closed"):
            side.run(divmod, 7, 2)

    asyncio.run(run())


class Panic(BaseException):
    """As PyO3's PanicException, which a fault inside the Rust libraries raises: no Exception."""


def test_a_panic_belongs_to_who_waits_and_ends_no_thread() -> None:
    def panic() -> None:
        raise Panic

    async def run() -> None:
        side = SideThread()
        with pytest.raises(Panic):
            await asyncio.wait_for(side.run(panic), 5)
        assert await asyncio.wait_for(side.run(divmod, 7, 2), 5) == (3, 1)
        side.close()

    asyncio.run(run())


def test_work_that_nobody_waits_for_is_not_done() -> None:
    async def run() -> list[str]:
        side, done, gate = SideThread(), [], threading.Event()
        side.run(gate.wait)
        left = side.run(done.append, "left")
        left.cancel()
        last = side.run(done.append, "last")
        gate.set()
        await last
        side.close()
        return done

    assert asyncio.run(run()) == ["last"]


def test_a_thread_that_grew_is_replaced() -> None:
    """Grown is, here, a thread that did not shrink: the numbers of threads count, not the bytes."""

    async def run() -> tuple[int, set[int]]:
        side = SideThread(growth_bytes=-(1 << 40))
        threads = {await side.run(threading.get_ident) for _ in range(3 * LOOK_TASKS + 1)}
        side.close()
        return side.renewals, threads

    renewals, threads = asyncio.run(run())
    assert renewals == 3
    assert threads


def test_a_loop_that_ended_is_not_told() -> None:
    gate = threading.Event()
    side = SideThread()

    async def run() -> None:
        side.run(gate.wait)

    asyncio.run(run())
    gate.set()

    async def again() -> int:
        return await side.run(len, "four")

    assert asyncio.run(again()) == 4
    side.close()


def test_memory_is_told_and_given_back() -> None:
    assert resident_bytes() > 1 << 20
    trim_memory()


def test_what_a_thread_keeps_does_not_fill_the_memory() -> None:
    """An encoder that remembers words for each thread, as fastokens does; a thread that is replaced at 16 MB gives them back."""
    kept = threading.local()

    def encode(text: str) -> int:
        kept.words = [*getattr(kept, "words", ()), text.encode() * 64]
        return len(kept.words)

    async def run() -> tuple[int, int]:
        side = SideThread(growth_bytes=16 << 20)
        before = resident_bytes()
        for _ in range(800):
            await side.run(encode, "word" * 1024)
        side.close()
        return side.renewals, resident_bytes() - before

    renewals, growth = asyncio.run(run())
    assert renewals >= 1
    assert growth < 120 << 20  # of 200 MB
