"""A gateway under one load: starts what is needed, and gives a `Measurement`. Used by `bench.gateway`, `bench.peers` and `bench.growth`."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from bench.rig.measure import PeakMemory, cpu_s, cpus, pss_mb
from bench.rig.model import BenchModel
from bench.rig.processes import BenchEngine, Gateway, Load, LoadFailed, run_load
from bench.rig.scenarios import Scenario
from smg.sim.processes import free_port

__all__ = ["Measurement", "Rig", "rig"]

IDLE_WITHIN_S = 5.0
READY_WITHIN_S = 20.0
GIVE_UP_S = 20.0  # after the end of a load


class Measurement(Struct, frozen=True, kw_only=True):
    """`cpu_us`: of all processes of the gateway, a request; `worker_us`: of the busiest of them. Times in milliseconds.

    `prompt_tokens` and `events` are a request's, to see that two gateways did the same work; `other_cores`: what ran beside.
    """

    scenario: str
    ok: int
    failed: int
    errors: dict[str, int]
    cpu_us: float
    worker_us: float
    rps: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    latency_ms_p50: float
    latency_ms_p99: float
    itl_ms_p50: float
    events: float
    prompt_tokens: float
    engine_us: float
    load_us: float
    peak_rss_mb: float
    pss_mb: float
    other_cores: float


class Rig(Struct, frozen=True, kw_only=True):
    """A gateway that answers, and what is around it."""

    model: BenchModel
    engine: BenchEngine
    gateway: Gateway
    load_cpus: set[int] | None

    def measure(self, scenario: Scenario, *, duration_s: float, warm_s: float, seed: int) -> Measurement:
        """Warms up, waits until nothing runs, and measures one run of the load."""
        self.engine.control(step_us=scenario.step_us)
        words = self.model.words_for(scenario.prompt_tokens)

        def load(seconds: float, seed: int) -> Load:
            return run_load(
                self.gateway.port,
                words_file=self.model.words_file(),
                words=words,
                out_tokens=scenario.out_tokens,
                concurrency=scenario.concurrency,
                mode=scenario.mode,
                turns=scenario.turns,
                stream=scenario.stream,
                duration_s=seconds,
                seed=seed,
                timeout_s=GIVE_UP_S,
                on=self.load_cpus,
            )

        load(warm_s, 900_000 + seed)
        self.wait_idle()
        pid = self.gateway.process.pid
        with PeakMemory(pid) as memory:
            engine_before, busy_before, before = self.engine.control(), machine_cpu_s(), cpu_s(pid)
            result = load(duration_s, seed)
            after, busy_after, engine_after = cpu_s(pid), machine_cpu_s(), self.engine.control()
        used = {process: after[process] - before.get(process, 0) for process in after}
        engine_s = engine_after.cpu_s - engine_before.cpu_s
        other = busy_after - busy_before - sum(used.values()) - engine_s - result.cpu_s
        ok = max(1, result.ok)
        return Measurement(
            scenario=scenario.name,
            ok=result.ok,
            failed=result.failed,
            errors={name: count for name, count in result.errors.items() if count},
            cpu_us=sum(used.values()) / ok * 1e6,
            worker_us=max(used.values()) / ok * 1e6,
            rps=result.rps,
            ttft_ms_p50=result.ttft_ms_p50,
            ttft_ms_p99=result.ttft_ms_p99,
            latency_ms_p50=result.latency_ms_p50,
            latency_ms_p99=result.latency_ms_p99,
            itl_ms_p50=result.itl_ms_p50,
            events=result.events / ok,
            prompt_tokens=(engine_after.prompt_tokens - engine_before.prompt_tokens) / ok,
            engine_us=engine_s / ok * 1e6,
            load_us=result.cpu_s / ok * 1e6,
            peak_rss_mb=memory.mb,
            pss_mb=pss_mb(pid),
            other_cores=max(0.0, other / max(result.wall_s, 1e-3)),
        )

    def wait_engines(self, count: int) -> None:
        """Waits until the gateway calls so many engines ready; only ours says that. Raises LoadFailed when they do not become so."""
        end = time.monotonic() + READY_WITHIN_S
        while (ready := self.gateway.ready_engines()) < count:
            if time.monotonic() > end:
                raise LoadFailed(f"{ready} of {count} engines are ready")
            time.sleep(0.1)

    def wait_idle(self) -> None:
        """Waits until the engine has no call."""
        end = time.monotonic() + IDLE_WITHIN_S
        while self.engine.control().running and time.monotonic() < end:
            time.sleep(0.05)


@contextlib.contextmanager
def rig(
    name: str,
    *,
    model: BenchModel,
    command: Callable[[int, Sequence[str]], Sequence[str]],
    protocol: str = "sglang",
    engines: int = 1,
    pin: bool = True,
) -> Iterator[Rig]:
    """Starts engines and a gateway, on processors of their own where there are several. `command(port, engine_urls)` is its line."""
    places = cpus() if pin else None
    gateway_cpus, load_cpus = places or (None, None)
    with BenchEngine(model, protocol=protocol, engines=engines, on=load_cpus) as engine:
        port = free_port()
        with Gateway(name, command=command(port, engine.urls), port=port, on=gateway_cpus) as gateway:
            yield Rig(model=model, engine=engine, gateway=gateway, load_cpus=load_cpus)


def machine_cpu_s() -> float:
    """Gives the seconds that all processors together were busy since boot."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
