"""The KV cache and its event feed: sharing, eviction, preemption, replay, gaps, flushing; and the transfer between prefill and decode."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest

from smg.pb import common_pb2
from smg.pb import sglang_scheduler_pb2 as sglang_pb
from smg.pb import tokenspeed_scheduler_pb2 as tokenspeed_pb
from smg.pb import vllm_engine_pb2 as vllm_pb
from smg.sim.blocks import BlockPool, BlockTable, chain_hash
from smg.sim.kvlog import HistoryLost, KvLog, Removed, Stored
from smg.sim.processes import free_port
from smg.sim.server import Sim, start_sim
from smg.sim.transfer import claim
from tests.sim.client import PROMPT, ask, chat_ids, complete_of, idle, ids_of, message, play, stub, until, unwrap

FEEDS = pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])


def computed(pool: BlockPool, ids: list[int]) -> BlockTable:
    """A table whose ids have all been computed."""
    table = pool.open(ids)
    assert table is not None
    pool.store(table, ids, computed=len(ids))
    return table


def test_equal_prefixes_share_blocks() -> None:
    pool = BlockPool(10, block_size=4)
    first, second = computed(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9]), computed(pool, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert pool.used == 4
    pool.close(first)
    pool.close(second)
    pool.close(second)
    assert pool.used == 0


def test_one_token_is_always_computed() -> None:
    pool = BlockPool(10, block_size=4)
    for cached in (0, 4):
        table = computed(pool, [1, 2, 3, 4, 5, 6, 7, 8])
        assert table.cached_tokens == cached
        pool.close(table)


def test_what_is_not_computed_is_neither_found_nor_told() -> None:
    pool = BlockPool(10, block_size=2)
    ids = [1, 2, 3, 4, 5, 6, 7]
    table = pool.open(ids)
    assert table is not None
    pool.store(table, ids, computed=3)
    assert pool.drain_events() == [Stored(blocks=((chain_hash(None, (1, 2)), (1, 2)),), parent=None)]
    other = pool.open(ids)
    assert other is not None
    assert (other.cached_tokens, pool.used) == (2, 7)
    pool.close(table)
    pool.close(other)
    assert (pool.cached, pool.used) == (1, 0)


def test_eviction_takes_the_oldest_and_a_prompts_tail_first() -> None:
    pool = BlockPool(4, block_size=2)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8]
    for ids in (old, new):
        pool.close(computed(pool, ids))
    pool.drain_events()
    computed(pool, [9, 10])
    head = chain_hash(None, (1, 2))
    removed, stored = pool.drain_events()
    assert removed == Removed(hashes=(chain_hash(head, (3, 4)),))
    assert stored == Stored(blocks=((chain_hash(None, (9, 10)), (9, 10)),), parent=None)


def test_no_room_changes_nothing() -> None:
    pool = BlockPool(3, block_size=2)
    table = pool.open([1, 2, 3])
    assert table is not None
    assert pool.open([1, 2, 4, 5, 6]) is None
    assert pool.used == 2
    assert not pool.extend(table, [1, 2, 3, 4, 5, 6, 7])
    assert pool.used == 2
    assert pool.extend(table, [1, 2, 3, 4, 5])
    assert not pool.clear()
    pool.close(table)
    assert pool.clear()
    assert pool.cached == 0


def test_events_tell_the_chain_of_a_growing_sequence() -> None:
    pool = BlockPool(8, block_size=2)
    table = computed(pool, [1, 2, 3])
    pool.extend(table, [1, 2, 3, 4, 5, 6])
    one = chain_hash(None, (1, 2))
    two = chain_hash(one, (3, 4))
    assert pool.drain_events() == [
        Stored(blocks=((one, (1, 2)),), parent=None),
        Stored(blocks=((two, (3, 4)), (chain_hash(two, (5, 6)), (5, 6))), parent=one),
    ]


def test_log_replays_and_says_when_it_cannot() -> None:
    async def run() -> None:
        log = KvLog(keep=3)
        for number in range(5):
            log.append([Removed(hashes=(number,))])
        log.append([])
        assert log.sequence == 5

        async def next_of(start: int) -> int:
            feed = log.subscribe(start)
            try:
                return (await asyncio.wait_for(anext(feed), 5)).sequence
            finally:
                await feed.aclose()  # type: ignore[attr-defined]

        assert [await next_of(start) for start in (0, 2, 4)] == [3, 3, 5]
        for start in (1, 6):
            with pytest.raises(HistoryLost):
                await next_of(start)
        assert log.subscribers == 0

    asyncio.run(run())


async def batches(engine: Any, count: int, *, start: int = 0) -> list[common_pb2.KvEventBatch]:
    """The next batches of a subscription."""
    call = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=start), timeout=30)
    found = [await call.read() for _ in range(count)]
    call.cancel()
    return found


@FEEDS
def test_feed_tells_what_is_cached(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        await ask(sim, max_tokens=1)
        ids = chat_ids(sim, PROMPT)
        async with stub(sim) as engine:
            (batch,) = await batches(engine, 1)
            stored = batch.events[0].stored
            assert batch.sequence_number == 1
            assert [number for block in stored.blocks for number in block.token_ids] == ids[: len(ids) // 16 * 16]
            assert {block.block_size for block in stored.blocks} == {16}
            assert not stored.HasField("parent_block_hash")
            flushed = getattr(engine, "FlushCache", None)
            if protocol != "trtllm":
                assert (await flushed(common_pb2.FlushCacheRequest(), timeout=30)).success
                (batch,) = await batches(engine, 1, start=1)
                assert batch.events[0].HasField("cleared")
                assert complete_of(await ask(sim, rid="again")).cached_tokens == 0
        await until(lambda: sim.events.subscribers == 0)

    play(scene, protocol=protocol)


@FEEDS
def test_feed_gap_is_filled_by_replay(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            live = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=30)
            await until(lambda: sim.events.subscribers == 1)
            for text in ("one", "two", "three"):
                if text == "two":
                    sim.events.hide_next()
                await ask(sim, f"{text}: {PROMPT}", max_tokens=1)
            assert [(await live.read()).sequence_number for _ in range(2)] == [1, 3]
            live.cancel()
            assert [batch.sequence_number for batch in await batches(engine, 2, start=1)] == [2, 3]

    play(scene, protocol=protocol)


def test_feed_that_lost_its_history() -> None:
    async def scene(sim: Sim) -> None:
        for number in range(4):
            await ask(sim, f"{number}: {PROMPT}", max_tokens=1)
        async with stub(sim) as engine:
            for start in (1, 99):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await batches(engine, 1, start=start)
                assert caught.value.code() == grpc.StatusCode.DATA_LOSS

    play(scene, kv_replay=2)


def test_feed_switched_off() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await batches(engine, 1)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    play(scene, kv_events=False)


def test_flush_is_refused_while_requests_run() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            call = engine.Generate(message(sim, chat_ids(sim, "[[sim: fault=hang]]")), timeout=30)
            await until(lambda: sim.counters.running == 1)
            assert not (await engine.FlushCache(common_pb2.FlushCacheRequest(), timeout=30)).success
            waiting = asyncio.ensure_future(engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5), timeout=30))
            call.cancel()
            assert (await waiting).success

    play(scene)


def test_preemption_keeps_the_output() -> None:
    """Two long outputs in a cache that holds one and a half: both come out whole."""

    async def scene(sim: Sim) -> None:
        texts = [f"Say {word}. [[sim: tokens=100]]" for word in ("north", "south")]
        answers = await asyncio.gather(*(ask(sim, text, rid=text) for text in texts))
        for text, parts in zip(texts, answers, strict=True):
            assert len(ids_of(parts)) == 101, text
            assert complete_of(parts).finish_reason == "stop"
        assert sim.counters.preempted > 0

    play(scene, kv_blocks=12, block_size=16, itl_ms=2)


def _nixl(sim: Sim) -> dict[str, Any]:
    return {"kv_transfer_params_json": json.dumps({"do_remote_decode": True, "do_remote_prefill": False})}


def test_vllm_prefill_then_decode() -> None:
    async def run() -> None:
        prefill = await start_sim(role="prefill")
        decode = await start_sim(role="decode")
        try:
            first = await ask(prefill, stream=False, max_tokens=1, **_nixl(prefill))
            handed = complete_of(first).kv_transfer_params_json
            assert json.loads(handed)["do_remote_prefill"] is True
            assert prefill.counters.blocks_pinned > 0
            parts = await ask(decode, kv_transfer_params_json=handed)
            assert decode.engine.model.decode(ids_of(parts)) == PROMPT
            assert (decode.counters.transfers, decode.counters.transfers_failed) == (1, 0)
            await asyncio.gather(idle(prefill), idle(decode))
            again = await ask(decode, rid="r-2", kv_transfer_params_json=handed)
            assert complete_of(again).finish_reason == "stop", "vLLM computes what it cannot fetch"
            assert decode.counters.transfers_failed == 1
        finally:
            await asyncio.gather(prefill.close(), decode.close())

    asyncio.run(run())


def test_unclaimed_blocks_are_released_when_the_lease_ends() -> None:
    async def scene(sim: Sim) -> None:
        await ask(sim, stream=False, max_tokens=1, **_nixl(sim))
        assert sim.counters.blocks_pinned > 0
        await idle(sim)
        assert sim.scheduler.ranks[0].pins.expired == 1

    play(scene, role="prefill", kv_lease_s=1.0)


def test_server_info_of_a_pair() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            info = await engine.GetServerInfo(vllm_pb.GetServerInfoRequest(), timeout=30)
        assert (info.kv_connector, info.kv_role) == ("NixlConnector", "kv_producer")
        assert info.kv_engine_id

    play(scene, role="prefill")


def _rooms(protocol: str) -> Callable[[int], dict[str, Any]]:
    def params(port: int) -> dict[str, Any]:
        values = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 77}
        if protocol == "sglang":
            return {"disaggregated_params": sglang_pb.DisaggregatedParams(**values)}
        return {"kv_bootstrap_info": tokenspeed_pb.KvBootstrapInfo(**values)}

    return params


@pytest.mark.parametrize("protocol", ["sglang", "tokenspeed"])
def test_bootstrap_rooms_in_parallel(protocol: str) -> None:
    async def run() -> None:
        prefill = await start_sim(protocol=protocol, role="prefill", status_port=0)
        decode = await start_sim(protocol=protocol, role="decode")
        params = _rooms(protocol)(prefill.engine.status_port)
        try:
            parts, first = await asyncio.gather(ask(decode, **params), ask(prefill, **params))
            assert decode.engine.model.decode(ids_of(parts)) == PROMPT
            assert len(ids_of(first)) == 1
            assert decode.counters.transfers == 1
            await asyncio.gather(idle(prefill), idle(decode))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(decode, "no room")
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        finally:
            await asyncio.gather(prefill.close(), decode.close())

    asyncio.run(run())


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_decode_that_waits_for_its_room_can_be_given_up(how: str) -> None:
    async def run() -> None:
        prefill, decode = (
            await start_sim(protocol="sglang", role="prefill", status_port=0),
            await start_sim(protocol="sglang", role="decode"),
        )
        params = _rooms("sglang")(prefill.engine.status_port)
        try:
            async with stub(decode) as engine:
                call = engine.Generate(message(decode, chat_ids(decode, PROMPT), **params), timeout=30)
                await until(lambda: decode.counters.started == 1)
                if how == "abort":
                    await engine.Abort(sglang_pb.AbortRequest(request_id="r-1"), timeout=30)
                else:
                    call.cancel()
                await until(lambda: decode.counters.aborted == 1)
                await idle(decode)
                call.cancel()
                await until(lambda: decode.counters.cancelled_calls == 1)
        finally:
            await asyncio.gather(prefill.close(), decode.close())

    asyncio.run(run())


@pytest.mark.parametrize(("protocol", "owned_by", "met"), [("sglang", "sim", True), ("openai", "sglang", True), ("vllm", "sim", False)])
def test_a_prefill_engine_that_is_met_has_the_usual_port(protocol: str, owned_by: str, met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = free_port()
    monkeypatch.setattr("smg.sim.server.BOOTSTRAP_PORT", usual)

    async def scene(sim: Sim) -> None:
        assert (sim.engine.status_port == usual) is met

    play(scene, protocol=protocol, owned_by=owned_by, role="prefill")


def test_a_room_without_prefill_fails() -> None:
    async def scene(sim: Sim) -> None:
        closed = _rooms("sglang")(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(sim, **closed)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert sim.counters.transfers_failed == 1

    play(scene, protocol="sglang", role="decode")


def test_status_port() -> None:
    async def scene(sim: Sim) -> None:
        await ask(sim)
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.status_url) as client:
            counters = (await client.get("/counters")).json()
            assert (counters["started"], counters["finished"], counters["blocks_used"]) == (1, 1, 0)
            assert (await client.get("/kv/claim?name=x")).status_code == 404
            assert (await client.get("/kv/claim?name=x&wait_s=no")).status_code == 400
            assert (await client.get("/nothing")).status_code == 404
            assert (await client.post("/abort?request_id=x")).json() == {"known": False}
            assert (await client.post("/kv/hide?count=2")).status_code == 200
        async with stub(sim) as engine:
            parts = [unwrap(reply) async for reply in engine.Generate(message(sim, chat_ids(sim, "Hi"), rid="b"), timeout=30)]
        assert parts

    play(scene, status_port=0)


@pytest.mark.parametrize(("host", "dialled"), [("[fd00::1]", "fd00::1"), ("10.0.0.1", "10.0.0.1")])
def test_hosts_come_as_engines_are_told_of_them(host: str, dialled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def connected(host: str, port: int) -> None:
        seen.append(host)
        raise OSError("nobody is there")

    monkeypatch.setattr(asyncio, "open_connection", connected)
    assert asyncio.run(claim(host, port=1, name="x", wait_s=0.0)) is None
    assert seen == [dialled]
