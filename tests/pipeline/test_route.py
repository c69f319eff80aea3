"""The route stage: what counts as load, forced engines, engines that are not ready, failed ones."""

import collections
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smg.config.tree import Resilience
from smg.config.tree import Routing as RoutingConfig
from smg.errors import InvalidValue, NoEngine
from smg.kvindex import PrefixIndex
from smg.obs.metrics import Meter
from smg.obs.shm import FIRST_WORKER_ROW, Shm
from smg.pipeline.route import Router
from smg.policy import POLICIES, Candidates, Policy, RouteRequest
from smg.types.job import Routing
from smg.worker import Breaker, EngineSpec, EngineState, Lease, Registry, Role, WorkerView
from tests.shm.memory import shared_memory

MODEL = "m"
IDS = [*range(100)]


class Gateway:
    """A registry with ready engines, and as many worker processes' routers as are asked for."""

    def __init__(self, folder: Path, shm: Shm, *, engines: int) -> None:
        self.registry = Registry(shm, folder=folder)
        self._shm, self._folder, self._row = shm, folder, FIRST_WORKER_ROW
        self.urls = [f"grpc://engine-{number}:1" for number in range(engines)]
        self.add(EngineSpec(url=url) for url in self.urls)

    def add(self, specs: Iterable[EngineSpec]) -> None:
        for record in self.registry.add(specs):
            self.registry.describe(msgspec.structs.replace(record, model=MODEL))
            self.registry.set_state(record.url, EngineState.READY)

    def worker(self, **settings: Any) -> Router:
        view = WorkerView(self._shm, row=self._row, folder=self._folder)
        self._row += 1
        return Router(view, config=msgspec.structs.replace(RoutingConfig(), **settings))

    def counting(self, **settings: Any) -> tuple[Router, Meter]:
        view = WorkerView(self._shm, row=self._row, folder=self._folder)
        meter = Meter(self._shm, row=self._row)
        return Router(view, config=msgspec.structs.replace(RoutingConfig(), **settings), meter=meter), meter

    def counted(self, name: str) -> dict[str, int]:
        return {key.decode().removeprefix(name): values[0] for key, values in self._shm.totals() if key.decode().startswith(name)}

    def loads(self) -> list[tuple[int, int]]:
        return [self.registry.inflight(record) for record in self.registry.records()]


Open = Callable[[int], Gateway]


@pytest.fixture
def gateway(tmp_path: Path) -> Open:
    memory = shared_memory(rows=8, prefix_blocks=4096)
    return lambda engines: Gateway(tmp_path, Shm(memory), engines=engines)


def route(router: Router, ids: list[int] = IDS, *, avoid: frozenset[int] = frozenset(), **routing: Any) -> tuple[str, Lease]:
    record, lease = router.route(MODEL, prompt_ids=ids, routing=Routing(**routing), avoid=avoid)
    return record.url, lease


@pytest.mark.parametrize("policy", ["least_load", "cache_aware", "power_of_two", "round_robin"])
def test_load_is_counted_before_anything_is_sent(policy: str, gateway: Open) -> None:
    """Known bug B112: 100 requests in flight over 2 engines are 50 and 50, and none at the end; also over two worker processes."""
    made = gateway(2)
    workers = [made.worker(policy=policy) for _ in range(2)]
    routed = [route(workers[number % 2], [number, *IDS]) for number in range(100)]
    counts = collections.Counter(url for url, _ in routed)
    assert all(abs(count - 50) <= 5 for count in counts.values()), counts
    assert sum(requests for requests, _ in made.loads()) == 100
    for _, lease in routed:
        lease.answered()
        lease.release()
        lease.release()
        lease.answered()
    assert made.loads() == [(0, 0), (0, 0)]


def test_the_first_token_takes_the_prompt_off_the_count(gateway: Open) -> None:
    made = gateway(1)
    _, lease = route(made.worker())
    assert made.loads() == [(1, 100)]
    lease.answered()
    lease.answered()
    assert made.loads() == [(1, 0)]
    lease.release()
    assert made.loads() == [(0, 0)]


def test_cached_tokens_are_no_load(gateway: Open) -> None:
    made = gateway(1)
    router = made.worker(policy="cache_aware")
    route(router)[1].release()
    route(router)
    assert made.loads() == [(1, 100 - 96)]


def test_names_the_rank_that_holds_most(gateway: Open) -> None:
    made = gateway(1)
    router, index = made.worker(policy="cache_aware"), PrefixIndex(made._shm)
    index.set_ranks(made.registry.records()[0].slot, 4)
    assert route(router)[1].rank == -1
    index.insert(index.prompt([*IDS, *range(1000)]), made.registry.records()[0].slot, 2)
    assert route(router, [*IDS, *range(1000)])[1].rank == 2
    assert route(router, [7] * 100)[1].rank == -1


def test_a_forced_engine_or_none(gateway: Open) -> None:
    """Known bug B115: the forced engine is taken while it is ready; when it is not, 503."""
    made = gateway(3)
    router = made.worker(policy="consistent_hashing")
    assert {route(router, target_worker="1", key=str(n))[0] for n in range(20)} == {made.urls[1]}
    made.registry.set_state(made.urls[1], EngineState.NOT_READY)
    for name in ("1", "3", "-1", "x", "", "9" * 5000, "²"):
        with pytest.raises(NoEngine if name == "1" else InvalidValue) as caught:
            route(router, target_worker=name)
        assert caught.value.status == (503 if name == "1" else 400)
        assert len(caught.value.message) < 200
    assert {route(router, key=str(n))[0] for n in range(50)} == {made.urls[0], made.urls[2]}


def test_a_target_is_the_engine_that_answers(gateway: Open) -> None:
    """With prefill and decode apart the prompt's engine cannot be the one that the request names."""
    made = gateway(0)
    roles: list[Role] = ["prefill", "decode", "decode"]
    made.add(EngineSpec(url=f"grpc://engine-{number}:1", role=role) for number, role in enumerate(roles))
    router, asked = made.worker(policy="consistent_hashing"), Routing(target_worker="2")
    chosen = [router.route(MODEL, prompt_ids=IDS, routing=asked, role=role)[0].url for role in ("decode", "prefill")]
    assert chosen == ["grpc://engine-2:1", "grpc://engine-0:1"]
    with pytest.raises(InvalidValue, match="computes prompts only"):
        router.route(MODEL, prompt_ids=IDS, routing=Routing(target_worker="0"), role="decode")


def test_an_open_breaker_is_passed_over_by_hashes_and_by_a_forced_engine(gateway: Open) -> None:
    """Known bug B115: the next on the ring; 503 for the forced one."""
    made = gateway(3)
    router = made.worker(policy="consistent_hashing")
    home, _ = route(router, key="k")
    [slot] = [record.slot for record in made.registry.records() if record.url == home]
    breaker = Breaker(made._shm, config=Resilience(cb_failure_threshold=1))
    breaker.fail(slot, epoch=made._shm.engine_epoch(slot))
    nexts = {route(router, key="k")[0] for _ in range(9)}
    assert len(nexts) == 1
    assert nexts != {home}
    with pytest.raises(NoEngine):
        route(router, target_worker=str(made.urls.index(home)))
    breaker.came_back(slot, epoch=made._shm.engine_epoch(slot))
    leases = [route(router, key="k") for _ in range(4)]
    assert [url for url, _ in leases] == [home] * 3 + [*nexts], "as many probes as must go well"
    assert [lease.probe for _, lease in leases] == [True] * 3 + [False]
    for _, lease in leases:
        lease.succeed()
    assert route(router, key="k")[0] == home


def test_other_policies_do_not_obey_a_forced_engine(gateway: Open) -> None:
    router = gateway(3).worker(policy="round_robin")
    assert len({route(router, target_worker="1")[0] for _ in range(9)}) == 3


@pytest.mark.parametrize("policy", POLICIES.names())
def test_engines_that_are_not_ready_or_have_failed_are_passed_over(policy: str, gateway: Open) -> None:
    made = gateway(3)
    router = made.worker(policy=policy)
    home, _ = route(router, key="k")
    slot_of = {record.url: record.slot for record in made.registry.records()}
    assert {route(router, key="k", avoid=frozenset({slot_of[home]}))[0] for _ in range(20)}.isdisjoint({home})
    assert route(router, key="k", avoid=frozenset(slot_of.values()))[0] in slot_of, "taken again when there is no other"
    made.registry.set_state(home, EngineState.NOT_READY)
    assert {route(router, key="k")[0] for _ in range(20)}.isdisjoint({home})
    for url in made.urls:
        made.registry.set_state(url, EngineState.FAILED)
    with pytest.raises(NoEngine):
        route(router, key="k")


def test_an_engine_that_is_removed_while_it_is_chosen(gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gateway(2)
    router = made.worker(policy="round_robin")

    def select(self: Policy, candidates: Candidates, *, request: RouteRequest) -> int:
        made.registry.retain(made.urls[1:])
        return 0

    monkeypatch.setattr(POLICIES.get("round_robin"), "select", select)
    assert route(router)[0] == made.urls[1]
    made.urls.clear()
    with pytest.raises(NoEngine):
        route(router)


def test_a_removed_engine_gets_nothing_and_takes_its_entries_with_it(gateway: Open) -> None:
    """Known bug B124: no new requests; what its cache held is not waited for."""
    made = gateway(2)
    router = made.worker(policy="cache_aware")
    home, lease = route(router)
    made.registry.retain([url for url in made.urls if url != home])
    assert route(router)[0] != home
    lease.release()


def test_each_model_may_have_a_policy_of_its_own(gateway: Open) -> None:
    made = gateway(2)
    router = made.worker(policy="round_robin", model_policy=("m=passthrough", "other=random"))
    assert {route(router)[0] for _ in range(6)} == {made.urls[0]}
    passthrough = router._policies["m", "regular"].policy
    for record in made.registry.records():
        made.registry.describe(msgspec.structs.replace(record, context_length=7))
    route(router)
    assert router._policies["m", "regular"].policy is passthrough  # what it knows outlives changes of the registry
    made.registry.add([EngineSpec(url=made.urls[1], labels=(("policy", "round_robin"),))])
    assert {route(router)[0] for _ in range(6)} == set(made.urls)
    made.registry.add([EngineSpec(url=made.urls[1], labels=(("policy", "no-such-policy"),))])
    assert {route(router)[0] for _ in range(6)} == {made.urls[0]}


def test_policies_of_models_that_left_are_forgotten(gateway: Open) -> None:
    made = gateway(2)
    router = made.worker()
    route(router)
    for record in made.registry.records():
        made.registry.describe(msgspec.structs.replace(record, model="n"))
    router.route("n", prompt_ids=IDS, routing=Routing(), avoid=frozenset())
    assert list(router._policies) == [("n", "regular")]


def test_a_key_has_engines_of_each_role(gateway: Open) -> None:
    """What it remembers of one role, the engine now and the one before, is not lost to the other."""
    made = gateway(0)
    roles: tuple[Role, ...] = ("prefill", "decode")
    made.add(EngineSpec(url=f"grpc://{role}-{number}:1", role=role) for role in roles for number in range(6))
    router = made.worker(policy="manual")

    def chosen(key: str, role: Role) -> str:
        record, lease = router.route(MODEL, prompt_ids=IDS, routing=Routing(key=key), role=role)
        lease.release()
        return record.url

    for key in map(str, range(6)):
        first, decode = chosen(key, "prefill"), chosen(key, "decode")
        made.registry.set_state(first, EngineState.NOT_READY)
        second = chosen(key, "prefill")
        assert chosen(key, "decode") == decode
        made.registry.set_state(first, EngineState.READY)
        made.registry.set_state(second, EngineState.NOT_READY)
        assert chosen(key, "prefill") == first
        made.registry.set_state(second, EngineState.READY)


def test_the_rank_with_the_fewest_tokens(gateway: Open) -> None:
    made = gateway(1)
    made.registry.describe(made.registry.records()[0], ranks=3)
    router = made.worker(policy="passthrough", dp_minimum_tokens_scheduler=True)
    routed = [route(router, IDS[:size])[0][-1] for size in (50, 10, 20, 15, 1)]
    assert routed == ["0", "1", "2", "1", "2"]
    assert [record.rank for record in made.registry.records()] == [0, 1, 2]
    assert {route(made.worker(policy="passthrough"))[0][-1] for _ in range(5)} == {"0"}


def test_of_ranks_with_equal_tokens_the_chosen_one_and_none_of_another_engine(gateway: Open) -> None:
    made = gateway(2)
    for record in made.registry.records():
        made.registry.describe(record, ranks=2)
    first, second = made.urls
    router = made.worker(policy="round_robin", dp_minimum_tokens_scheduler=True)
    leases = [route(router) for _ in range(4)]
    assert [url for url, _ in leases] == [f"{first}@0", f"{second}@0", f"{first}@1", f"{second}@1"], "in the order of their slots"
    leases[0][1].release()
    assert [route(router, [])[0] for _ in range(4)] == [f"{first}@0", f"{second}@0", f"{first}@0", f"{second}@1"]
    forced = made.worker(policy="consistent_hashing", dp_minimum_tokens_scheduler=True)
    assert [route(forced, target_worker=place)[0] for place in "0123"] == [f"{first}@0", f"{first}@1", f"{second}@0", f"{second}@1"]


def test_what_another_rank_holds_is_no_saving(gateway: Open) -> None:
    made = gateway(1)
    made.registry.describe(made.registry.records()[0], ranks=2)
    router = made.worker(policy="cache_aware", dp_minimum_tokens_scheduler=True, request_cost_tokens=0)
    url, held = route(router, IDS[:96])
    held.answered()
    again, _ = route(router, IDS[:96])
    assert again == url
    assert sorted(made.loads()) == [(0, 0), (2, 0)], "it holds all of the prompt"
    route(router, IDS[:64] + [7] * 9)
    assert sorted(made.loads()) == [(0, 0), (3, 9)]
    other, _ = route(router, IDS[:64])
    assert other != url
    assert sorted(made.loads()) == [(1, 64), (3, 9)], "the policy had chosen the one that holds it"


def test_choices_are_counted_by_policy_and_not_by_engine(gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gateway(3)
    router, meter = made.counting(policy="round_robin")
    for _ in range(6):
        route(router)
    route(router, target_worker="1")
    labels = '{worker_type="regular",connection_mode="grpc",model="m",policy="round_robin"}'
    assert made.counted("smg_worker_selection_total") == {labels: 7}
    monkeypatch.setattr(meter, "counter", None)  # what counts is held, and not looked for
    route(router)
    made.registry.publish()
    route(router)
    assert made.counted("smg_worker_selection_total") == {labels: 9}
