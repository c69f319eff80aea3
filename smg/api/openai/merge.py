"""Several pipelines' events as one stream, each list with the number of the job it belongs to. Called by completions.py."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from smg.types.event import Event

__all__ = ["merged"]

Batch: TypeAlias = tuple[int, list[Event]]

# Lists that wait for the client's stream, over all jobs; a full queue slows the engines' readers down.
QUEUED = 64


async def merged(streams: Sequence[AsyncIterator[list[Event]]]) -> AsyncGenerator[Batch, None]:
    """Yields lists as they come. The first error ends all; closing closes every stream before it returns."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:  # type: ignore[type-var]
            async for events in only:
                yield 0, events
        return
    queue: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(QUEUED)
    tasks: list[asyncio.Task[None]] = []
    try:
        for i, stream in enumerate(streams):
            tasks.append(asyncio.create_task(_pump(i, stream, queue)))
            await asyncio.sleep(0)  # each may tokenize its prompt on the loop, which others use too
        for _ in tasks:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(number: int, stream: AsyncIterator[list[Event]], queue: "asyncio.Queue[Batch | BaseException | None]") -> None:
    try:
        async with aclosing(stream) as batches:  # type: ignore[type-var]
            async for events in batches:
                await queue.put((number, events))
    except Exception as error:
        await queue.put(error)
        return
    await queue.put(None)
