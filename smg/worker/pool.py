"""A data worker's connections to engines: one started driver for each engine, opened on first use and closed when the engine is gone."""

import asyncio
import logging
from collections.abc import Callable

from smg.config import Config
from smg.engine import Engine, EngineOptions, open_engine
from smg.worker.record import EngineRecord

__all__ = ["EnginePool", "engine_options"]

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5


def engine_options(config: Config) -> EngineOptions:
    """Gives how engines are called: engines get the gateway's own key, as they do from the original."""
    tls = config.tls
    return EngineOptions(
        api_key=next(iter(config.server.api_key), None),
        connect_timeout_s=config.engines.connect_timeout_s,
        unary_timeout_s=config.health.check_timeout_s,
        max_message_bytes=config.engines.max_message_bytes,
        data_plane=config.engines.data_plane,
        ca_cert_path=tls.ca_cert_path or None,
        client_cert_path=tls.client_cert_path or None,
        client_key_path=tls.client_key_path or None,
    )


class EnginePool:
    """Drivers by engine. Used from one event loop."""

    def __init__(self, config: Config, *, open_driver: Callable[..., Engine] = open_engine) -> None:
        self._options = engine_options(config)
        self._open_driver = open_driver
        self._drivers: dict[tuple[str, str], tuple[EngineRecord, asyncio.Task[Engine]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, record: EngineRecord) -> Engine:
        """Gives the started driver of an engine. Raises what its `start` raises; the next call tries again."""
        key = (record.url, record.runtime)
        if key not in self._drivers:
            self._drivers[key] = record, asyncio.get_running_loop().create_task(self._start(record))
        task = self._drivers[key][1]
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._drivers.get(key) == (record, task):
                del self._drivers[key]
            raise

    def retain(self, records: list[EngineRecord], *, held: Callable[[EngineRecord], int]) -> None:
        """Lets go of engines that are not among `records`; each driver is closed when `held` says that its requests have ended."""
        wanted = {(record.url, record.runtime) for record in records}
        for key in [key for key in self._drivers if key not in wanted]:
            record, task = self._drivers.pop(key)
            closing = asyncio.get_running_loop().create_task(self._retire(record, task, held))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes every driver, whatever it is doing."""
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        drivers, self._drivers = list(self._drivers.values()), {}
        for _, task in drivers:
            await self._close_driver(task)

    async def _start(self, record: EngineRecord) -> Engine:
        engine = self._open_driver(record.url, runtime=record.runtime, options=self._options)
        await engine.start()
        return engine

    async def _retire(self, record: EngineRecord, task: asyncio.Task[Engine], held: Callable[[EngineRecord], int]) -> None:
        try:
            while held(record):  # noqa: ASYNC110  leases are counted in shared memory, where nothing can be awaited
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            await self._close_driver(task)

    @staticmethod
    async def _close_driver(task: asyncio.Task[Engine]) -> None:
        (engine,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(engine, Engine):
            await engine.close()
