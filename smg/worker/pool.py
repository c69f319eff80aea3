"""A data worker's connections to engines: one started driver for each engine, opened on first use and closed when the engine is gone."""

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from smg.config import Config
from smg.engine import Engine, EngineOptions, open_engine
from smg.worker.record import EngineRecord

__all__ = ["EnginePool", "engine_options", "options_for"]

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
        max_connections=config.engines.max_connections,
        health_path=config.health.check_endpoint,
        ca_cert_path=tls.ca_cert_path or None,
        client_cert_path=tls.client_cert_path or None,
        client_key_path=tls.client_key_path or None,
    )


def options_for(record: EngineRecord, options: EngineOptions) -> EngineOptions:
    """Gives how one engine is called: with its own key, where it has one."""
    return structs.replace(options, api_key=record.api_key) if record.api_key else options


def key_of(record: EngineRecord) -> tuple[str, str, str]:
    """Gives what a connection depends on; all ranks of an engine share it."""
    return record.address, record.runtime, record.api_key


class EnginePool:
    """Drivers by engine. Used from one event loop."""

    def __init__(self, config: Config, *, open_driver: Callable[..., Engine] = open_engine) -> None:
        self._options = engine_options(config)
        self._open_driver = open_driver
        self._drivers: dict[tuple[str, str, str], asyncio.Task[Engine]] = {}
        self._records: dict[tuple[str, str, str], list[EngineRecord]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, record: EngineRecord) -> Engine:
        """Gives the started driver of an engine. Raises what its `start` raises; the next call tries again."""
        key = key_of(record)
        task = self._drivers.get(key)
        if task is None:
            self._records[key] = [record]
            task = self._drivers[key] = asyncio.get_running_loop().create_task(self._start(record))
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._drivers.get(key) is task:
                del self._drivers[key]
            raise

    def retain(self, records: list[EngineRecord], *, held: Callable[[EngineRecord], int]) -> None:
        """Lets go of engines that are not among `records`; each driver is closed when `held` says that its requests have ended."""
        wanted: dict[tuple[str, str, str], list[EngineRecord]] = {}
        for record in records:
            wanted.setdefault(key_of(record), []).append(record)
        for key in list(self._drivers):
            before = [record for record in self._records.get(key, ()) if held(record)]
            if key in wanted:
                self._records[key] = [*wanted[key], *(record for record in before if record not in wanted[key])]
                continue
            self._records.pop(key, None)
            closing = asyncio.get_running_loop().create_task(self._retire(before, self._drivers.pop(key), held))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes every driver, whatever it is doing."""
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        drivers, self._drivers = list(self._drivers.values()), {}
        for task in drivers:
            await self._close_driver(task)

    async def _start(self, record: EngineRecord) -> Engine:
        engine = self._open_driver(record.address, runtime=record.runtime, options=options_for(record, self._options))
        await engine.start()
        return engine

    async def _retire(self, records: list[EngineRecord], task: asyncio.Task[Engine], held: Callable[[EngineRecord], int]) -> None:
        try:
            while any(map(held, records)):  # noqa: ASYNC110  leases are counted in shared memory, where nothing can be awaited
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            await self._close_driver(task)

    @staticmethod
    async def _close_driver(task: asyncio.Task[Engine]) -> None:
        (engine,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(engine, Engine):
            await engine.close()
