"""An engine of several data-parallel ranks: who computes what, what each tells of its cache, and a feed as vLLM's servicer has it."""

import asyncio
from typing import Any

import grpc
import httpx
import pytest

from smg.pb import common_pb2
from smg.pb import vllm_engine_pb2 as vllm_pb
from smg.sim.counters import Abort, Counters, total
from smg.sim.server import Sim
from tests.sim.client import PROMPT, ask, complete_of, play, stub, until

RANKED = pytest.mark.parametrize("protocol", ["vllm", "sglang", "tokenspeed"])


def per_rank(sim: Sim, name: str) -> list[int]:
    return [getattr(rank.counters, name) for rank in sim.scheduler.ranks]


@RANKED
def test_each_rank_has_a_cache_of_its_own(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        cached = [
            complete_of(await ask(sim, rid=f"{n}", max_tokens=1, data_parallel_rank=rank)).cached_tokens for n, rank in enumerate((2, 0, 2))
        ]
        assert cached[:2] == [0, 0]
        assert cached[2] > 0
        assert per_rank(sim, "finished") == [1, 0, 2, 0]
        assert sim.counters.finished == 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(sim, rid="x", data_parallel_rank=4)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    play(scene, protocol=protocol, dp_size=4)


def test_without_a_rank_the_one_with_the_fewest_is_taken() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            info = await engine.GetServerInfo(vllm_pb.GetServerInfoRequest(), timeout=30)
            tasks = [asyncio.ensure_future(ask(sim, "[[sim: fault=hang]]", rid=f"r{number}")) for number in range(6)]
            await until(lambda: sim.counters.running == 6)
            loads = (await engine.GetLoads(vllm_pb.GetLoadsRequest(), timeout=30)).loads
            assert [(load.dp_rank, load.num_running_reqs) for load in loads] == [(0, 2), (1, 2), (2, 2)]
            assert info.data_parallel_size == 3
            await engine.Abort(vllm_pb.AbortRequest(request_ids=["r4"]), timeout=30)
            await until(lambda: sim.counters.running == 5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: sim.counters.running == 0)

    play(scene, dp_size=3)


async def feed(sim: Sim, count: int, *, start: int = 0) -> list[common_pb2.KvEventBatch]:
    async with stub(sim) as engine:
        call = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=start), timeout=30)
        found = [await call.read() for _ in range(count)]
        call.cancel()
        return found


@RANKED
def test_the_feed_has_each_ranks_own_numbers(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        for number, rank in enumerate((1, 1, 0)):
            await ask(sim, f"{number}: {PROMPT}", rid=f"{number}", max_tokens=1, data_parallel_rank=rank)
        batches = await feed(sim, 3)
        assert sorted((batch.dp_rank, batch.sequence_number) for batch in batches) == [(0, 1), (1, 1), (1, 2)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await feed(sim, 1, start=1)
        assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE
        await until(lambda: not any(rank.log.subscribers for rank in sim.scheduler.ranks))

    play(scene, protocol=protocol, dp_size=2)


def test_a_feed_as_vllms_servicer_has_it() -> None:
    """Live only, no number to go on from, and heartbeats that repeat the last number with a later time."""

    async def scene(sim: Sim) -> None:
        await ask(sim, rid="before", max_tokens=1)
        for start in (1, 99):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await feed(sim, 1, start=start)
            assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE
        waiting = asyncio.ensure_future(feed(sim, 60))
        await until(lambda: sim.events.subscribers == 1)
        await ask(sim, f"other: {PROMPT}", rid="after", max_tokens=1)
        batches = await waiting
        events = [batch for batch in batches if batch.events]
        beats = [batch for batch in batches if batch.load.load_only]
        assert [batch.sequence_number for batch in events] == [2]
        assert len(events) + len(beats) == 60
        at = batches.index(events[0])
        assert {batch.sequence_number for batch in batches[:at]} <= {0}
        assert {batch.sequence_number for batch in batches[at:]} == {2}
        assert batches[-1].timestamp > events[0].timestamp

    play(scene, kv_replay=0, kv_heartbeat_ms=5)


def test_a_heartbeat_behind_an_event_that_was_not_read_has_its_number() -> None:
    async def scene(sim: Sim) -> None:
        found = sim.scheduler.subscribe(0)
        assert (await anext(found))[1].heartbeat
        await ask(sim, max_tokens=1)
        told = []
        for _ in range(5):
            await asyncio.sleep(0.02)  # one is to be read, be it the event, and the next heartbeat is due behind it
            told.append((await anext(found))[1])
        await found.aclose()  # type: ignore[attr-defined]
        assert [batch.sequence for batch in told] == sorted(batch.sequence for batch in told)
        assert told[-1].sequence == 1

    play(scene, kv_replay=0, kv_heartbeat_ms=5)


@pytest.mark.parametrize(
    ("owned_by", "headers", "fields"), [("vllm", {"x-data-parallel-rank": "1"}, {}), ("sglang", {}, {"data_parallel_rank": 1})]
)
def test_ranks_over_http(owned_by: str, headers: dict[str, str], fields: dict[str, Any]) -> None:
    async def scene(sim: Sim) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:
            for _ in range(2):
                assert (await client.post("/v1/completions", json={"prompt": "Hi", **fields}, headers=headers)).status_code == 200
            assert per_rank(sim, "finished") == [0, 2]
            metrics = (await client.get("/metrics")).text
            assert 'vllm:num_requests_running{engine="1"' in metrics
            assert (await client.get("/get_server_info")).status_code == (200 if owned_by == "sglang" else 404)
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.status_url) as status:
            assert [(await status.get(f"/counters{rank}")).json()["finished"] for rank in ("", "?rank=0", "?rank=1")] == [2, 0, 2]
            assert (await status.get("/counters?rank=2")).status_code == 400

    play(scene, protocol="openai", owned_by=owned_by, dp_size=2, status_port=0)


def test_a_sum_of_counters() -> None:
    aborts = [Abort(request_id=name, cause="rpc", known=True, at_s=at_s) for name, at_s in (("late", 2.0), ("early", 1.0))]
    first, second = Counters(running=1, tokens=5), Counters(running=2)
    first.aborts.append(aborts[0])
    second.aborts.append(aborts[1])
    made = total([first, second])
    assert (made.running, made.tokens, [abort.request_id for abort in made.aborts]) == (3, 5, ["early", "late"])
    assert (first.running, len(first.aborts)) == (1, 1)
