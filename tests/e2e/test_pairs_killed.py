"""Pairs of engines over HTTP under load, one of which dies: what is lost, and that neither the gateway nor an engine keeps anything."""

import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, SimEngine, wait_until
from tests.e2e.load import load

HEALTH = ("--health-check-interval-secs", "0.5", "--health-check-timeout-secs", "10")
FLAGS = ("--workers", "2", "--pd-disaggregation", "--policy", "round_robin", "--request-timeout-secs", "15", *HEALTH)
PARTS = ("openai prefill", "openai prefill", "openai decode", "openai decode")


def held(engine: SimEngine) -> int:
    """Blocks of its KV cache that an engine keeps for somebody."""
    counters = engine.counters()
    return counters["blocks_used"] + counters["blocks_pinned"]


@pytest.mark.parametrize(("runtime", "dies"), [("vllm", 2), ("sglang", 0)])
def test_only_streams_that_had_begun_are_lost(own_fleet: Fleet, runtime: str, dies: int) -> None:
    """A cache that only the dead engine knew of is given up after a while, as engines do."""
    flags = (*SIM_FLAGS, "--owned-by", runtime, "--kv-lease-s", "5")
    gateway = own_fleet.launch(*PARTS, sim_flags=flags, flags=FLAGS)
    with load(gateway.base_url, marker="tokens=10 itl_ms=50", clients=16, within_s=30) as streams:
        wait_until(lambda: streams.ends["done"] >= 8, within_s=30, what="streams are answered")
        gateway.engines[dies].kill()
        done = streams.ends["done"]
        wait_until(lambda: streams.ends["done"] >= done + 24, within_s=30, what="the others go on")
    ends = streams.ends
    assert streams.sent == sum(ends.values()), "a request hangs"
    assert ends["refused"] == 0, (ends, streams.problems[:3])
    assert ends["failed"] + ends["cut"] == streams.begun, (ends, streams.problems[:3])
    alive = [engine for engine in gateway.engines if engine.child.process.poll() is None]
    assert len(alive) == 3
    wait_until(gateway.idle, what="nothing is counted")
    wait_until(lambda: not any(map(held, alive)), what="no block is held")
    with gateway.http() as http:
        assert http.get("/readiness").status_code == 200
        for engine in gateway.engines[2:] if dies == 2 else gateway.engines[:2]:
            engine.kill()
        wait_until(lambda: http.get("/readiness").status_code == 503, what="a role is missing")
        assert ("decode" if dies == 2 else "prefill") in http.get("/readiness").text
