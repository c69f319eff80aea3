"""Connections of a data worker."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from smg.config import Config
from smg.config.tree import Server, Tls
from smg.errors import EngineUnavailable
from smg.worker import EnginePool, EngineRecord, engine_options
from tests.worker.fake import Rig, until

ONE = EngineRecord(slot=0, epoch=1, id="1", url="grpc://a:1", runtime="fake", model="m")
TWO = EngineRecord(slot=1, epoch=1, id="2", url="grpc://b:1", runtime="fake", model="m")


def run(rig: Rig, scene: Callable[[EnginePool], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = EnginePool(rig.config, open_driver=rig.open_driver)
        await scene(pool)
        await pool.close()
        assert len(rig.closed) == len(rig.started)

    asyncio.run(main())


def test_one_driver_an_engine_also_when_many_ask_at_once(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(pool: EnginePool) -> None:
        engines = await asyncio.gather(*(pool.get(ONE) for _ in range(10)), pool.get(TWO))
        assert len(set(map(id, engines))) == len(rig.started) == 2
        assert await pool.get(ONE) is engines[0]

    run(rig, scene)


def test_a_start_that_fails_is_tried_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)

    async def scene(pool: EnginePool) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(rig, "open_driver", None)

            async def fails(engine: object) -> None:
                raise EngineUnavailable("no")

            patch.setattr("tests.worker.fake.FakeEngine.start", fails)
            with pytest.raises(EngineUnavailable):
                await pool.get(ONE)
        assert (await pool.get(ONE)).url == ONE.url

    run(rig, scene)


def test_a_caller_that_leaves_does_not_take_the_start_with_it(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(pool: EnginePool) -> None:
        first = asyncio.create_task(pool.get(ONE))
        second = asyncio.create_task(pool.get(ONE))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).url == ONE.url

    run(rig, scene)


def test_an_engine_that_is_gone_is_closed_when_its_requests_have_ended(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(pool: EnginePool) -> None:
        engine = await pool.get(ONE)
        kept = await pool.get(TWO)
        held = {ONE: 1}
        pool.retain([TWO], held=lambda record: held.get(record, 0))
        await asyncio.sleep(0.05)
        assert rig.closed == []
        held.clear()
        await until(lambda: rig.closed == [engine])
        assert await pool.get(TWO) is kept
        assert await pool.get(ONE) is not engine

    run(rig, scene)


def test_an_engine_that_is_given_another_key_is_called_with_it(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)
    other = msgspec.structs.replace(ONE, api_key="new")

    async def scene(pool: EnginePool) -> None:
        before, after = await pool.get(ONE), await pool.get(other)
        assert (before.options.api_key, after.options.api_key) == (None, "new")
        assert await pool.get(msgspec.structs.replace(other, slot=1, url="grpc://a:1@1", base_url="grpc://a:1", rank=1)) is after
        pool.retain([other], held=lambda record: 0)
        await until(lambda: rig.closed == [before])

    run(rig, scene)


def test_options_come_from_the_config() -> None:
    config = Config(server=Server(api_key=("k1", "k2")), tls=Tls(ca_cert_path="ca.pem"))
    options = engine_options(config)
    assert (options.api_key, options.ca_cert_path, options.client_cert_path) == ("k1", "ca.pem", None)
