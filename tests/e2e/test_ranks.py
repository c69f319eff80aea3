"""Real processes: a gateway that routes to data-parallel ranks, in front of engines of four each."""

import re

import httpx
import pytest

from smg.sim.processes import Child, sim_command
from tests.e2e.fleet import TAG, Fleet, Gateway, SimEngine, wait_until

RANKS = 4
FLAGS = ("--workers", "2", "--dp-aware", "--policy", "cache_aware", "--health-check-interval-secs", "0.5", "--load-monitor-interval", "0.5")
ENGINE = ("--dp-size", str(RANKS), "--kv-replay", "0", "--kv-heartbeat-ms", "100", "--output", "text", "--text", "Fine.", "--speed", "0")
# 16 tokens a block; the first words differ, so that nothing is shared.
PROMPTS = [f"{number} " + " ".join(f"word{number}-{word}" for word in range(120)) for number in range(64)]


class Asker:
    """Asks, and finds out who answered. One client, since making one takes longer than an answer."""

    def __init__(self, gateway: Gateway, http: httpx.Client) -> None:
        self.gateway = gateway
        self.http = http
        self.before = self.placed()

    def placed(self) -> list[int]:
        """Requests that each rank of each engine has answered."""
        urls = [f"{engine.status_url}/counters?rank={rank}" for engine in self.gateway.engines for rank in range(RANKS)]
        return [self.http.get(url).json()["finished"] for url in urls]

    def ask(self, number: int, more: str = "") -> int:
        """Gives the place of the rank that answered, among those of all engines."""
        body = {"model": "sim-model", "messages": [{"role": "user", "content": PROMPTS[number] + more}], "max_tokens": 4}
        reply = self.http.post(f"{self.gateway.base_url}/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        before, self.before = self.before, self.placed()
        grown = [at for at, (now, then) in enumerate(zip(self.before, before, strict=True)) if now > then]
        assert len(grown) == 1
        return grown[0]

    def ready(self) -> bool:
        """True when every rank is."""
        workers = self.http.get(f"{self.gateway.base_url}/workers").json()["workers"]
        return len(workers) == 2 * RANKS and all(worker["is_healthy"] and re.search(r"@[0-3]$", worker["url"]) for worker in workers)


def restarted(fleet: Fleet, engine: SimEngine, protocol: str, flags: tuple[str, ...]) -> None:
    """Kills an engine and starts another in its place, with an empty cache."""
    engine.kill()
    ports = ("--port", engine.url.rpartition(":")[2], "--status-port", engine.status_url.rpartition(":")[2])
    child = Child(protocol, command=[*sim_command(protocol=protocol, flags=flags), *ports], environment={TAG: fleet.tag})
    fleet.keep(child)
    child.wait_ready(within_s=30)
    engine.child = child


@pytest.mark.parametrize(("protocol", "flags"), [("vllm", ENGINE), ("openai", (*ENGINE, "--owned-by", "sglang"))])
def test_prompts_stay_at_the_rank_that_has_them(own_fleet: Fleet, protocol: str, flags: tuple[str, ...]) -> None:
    gateway = own_fleet.launch(protocol, protocol, sim_flags=flags, flags=FLAGS, own_ports=True)
    with httpx.Client(timeout=20, trust_env=False) as http:
        asker = Asker(gateway, http)
        wait_until(asker.ready, what="every rank is ready")
        places: list[int] = []
        while any(len({place for place in places if place // RANKS == engine}) < 2 for engine in (0, 1)):
            places.append(asker.ask(len(places)))
        assert [asker.ask(number, more=" And more?") for number in range(len(places))] == places
        cached = [engine.counters()["cached_tokens"] for engine in gateway.engines]
        assert all(cached)
        restarted(own_fleet, gateway.engines[0], protocol, flags)
        wait_until(asker.ready, what="every rank is ready again")
        asker.before = asker.placed()
        others = [number for number, place in enumerate(places) if place >= RANKS]
        assert [asker.ask(number, more=" And now?") for number in others] == [places[number] for number in others]
        assert gateway.engines[1].counters()["cached_tokens"] > cached[1]
    wait_until(gateway.idle, what="idle")
