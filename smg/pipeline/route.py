"""Route stage: chooses an engine for a job and counts the load there before anything is sent."""

from collections.abc import Sequence

from msgspec import Struct, structs

from smg.config.tree import Routing as RoutingConfig
from smg.errors import InvalidValue, NoEngine
from smg.obs.metrics import Counter, Meter
from smg.policy import POLICIES, Candidates, Policy, RouteRequest, build_policy
from smg.types.job import TARGET_HEADER, Routing
from smg.worker import EngineRecord, Lease, Role, WorkerView

__all__ = ["Router"]

ROLE_WORDS: dict[Role, str] = {"regular": "", "prefill": "prefill ", "decode": "decode "}


class Chosen(Struct, frozen=True):
    """A model's policy, as of one generation of the registry. `selections`: counts the engines that it has chosen."""

    generation: int
    name: str
    policy: Policy
    selections: Counter | None


class Router:
    """Keeps one policy a model and role, since a policy's state is about one set of engines."""

    def __init__(self, view: WorkerView, *, config: RoutingConfig, meter: Meter | None = None) -> None:
        self._view = view
        self._meter = meter
        self._config = config
        self._named = {model: policy for model, _, policy in (entry.rpartition("=") for entry in config.model_policy)}
        self._policies: dict[tuple[str, Role], Chosen] = {}

    def route(
        self,
        model: str,
        avoid: frozenset[int] = frozenset(),
        *,
        prompt_ids: Sequence[int],
        routing: Routing,
        role: Role = "regular",
        runtime: str = "",
        text: str = "",
    ) -> tuple[EngineRecord, Lease]:
        """Gives the chosen engine and the lease that counts the request there. Raises NoEngine when none may have the request.

        Slots in `avoid` have just failed this request; they are taken again only when there is no other. `runtime`: only engines of it.
        `text`: the prompt where the engine tokenizes; `prompt_ids` is empty then. A target that the request names is the engine that
        answers, so that a prefill engine is chosen as if there were none.
        """
        candidates = self._view.candidates(model, role=role, runtime=runtime)
        if not candidates:
            raise NoEngine(f"no {ROLE_WORDS[role]}engine is ready for {model!r}", retry_after_s=self._view.wait_s(model, role=role))
        named, size = self._chosen(model, role), len(prompt_ids) or len(text) // 4
        policy = named.policy
        if routing.target_worker is not None and role != "prefill" and policy.takes_target:
            return self._target(model, routing.target_worker, candidates, tokens=size, named=named)
        if avoid:
            candidates = candidates.without(avoid) or candidates
        name = model if role == "regular" else f"{model}\n{role}"
        request = RouteRequest(prompt_ids=prompt_ids, routing=routing, model=name, text=text)
        best = chosen = policy.select(candidates, request=request)
        if self._config.dp_minimum_tokens_scheduler:
            chosen = _least_rank(best, candidates)
        cached = policy.cached_tokens if chosen == best else 0
        taken = self._taken(model, candidates, chosen, tokens=max(0, size - cached), named=named)
        if taken is None:  # it was removed meanwhile, or others probe it
            return self.route(model, avoid, prompt_ids=prompt_ids, routing=routing, role=role, runtime=runtime, text=text)
        taken[1].rank = policy.rank
        return taken

    def _taken(self, model: str, candidates: Candidates, index: int, *, tokens: int, named: Chosen) -> tuple[EngineRecord, Lease] | None:
        """Gives a candidate's record and the lease there; None when it is none any more."""
        slot, probe = candidates.slots[index], candidates.is_probe(index)
        record = self._view.record(slot)
        if record is None or record.model != model or (probe and not self._view.take_probe(slot)):
            return None
        if named.selections is not None:
            named.selections.add()
        return record, self._view.acquire(slot, tokens, probe=probe)

    def _chosen(self, model: str, role: Role) -> Chosen:
        """The policy that an engine of the model and role names by its label `policy`, else the role's, the model's own, that of all."""
        known, generation = self._policies.get((model, role)), self._view.generation
        if known is not None and known.generation == generation:
            return known
        config, engines = self._config, self._view.engines(model)
        said = (dict(record.labels).get("policy", "") for record in engines if record.labels and record.role == role)
        of_role = {"prefill": config.prefill_policy, "decode": config.decode_policy}.get(role, "")
        names = (*said, of_role, self._named.get(model, ""), config.policy)
        name = next(name for name in names if name and name in POLICIES)
        if known is not None and known.name == name:
            chosen = structs.replace(known, generation=generation)
        else:
            policy = build_policy(structs.replace(config, policy=name), shm=self._view.shm)
            chosen = Chosen(generation, name, policy, self._selections(engines, model=model, role=role, policy=name))
        self._policies = {key: known for key, known in self._policies.items() if self._view.engines(key[0])}
        self._policies[model, role] = chosen
        return chosen

    def _selections(self, engines: list[EngineRecord], *, model: str, role: Role, policy: str) -> Counter | None:
        """Gives the counter of a policy's choices; engines of a model are of one kind."""
        mode = "http" if any(record.relayed for record in engines) else "grpc"
        return self._meter.counter("smg_worker_selection_total", (role, mode, model, policy)) if self._meter is not None else None

    def _target(self, model: str, index: str, candidates: Candidates, *, tokens: int, named: Chosen) -> tuple[EngineRecord, Lease]:
        """Takes the engine that the request names by its place among the model's engines, and no other (known bug B115)."""
        records = self._view.engines(model)
        record = records[int(index)] if index.isdecimal() and len(index) < 6 and int(index) < len(records) else None
        if record is None or record.role == "prefill":
            fault = "computes prompts only" if record else f"is none of them: they are 0 to {len(records) - 1}"
            raise InvalidValue(f"{TARGET_HEADER}: engine {index[:32]!r} of {model!r} {fault}", param=TARGET_HEADER)
        chosen = candidates.index_of.get(record.slot)
        taken = None if chosen is None else self._taken(model, candidates, chosen, tokens=tokens, named=named)
        if not taken:
            raise NoEngine(f"engine {index[:32]!r} of {model!r}, which the request names, is not ready", retry_after_s=1)
        return taken


def _least_rank(chosen: int, candidates: Candidates) -> int:
    """Of the chosen engine's data-parallel ranks the one with the fewest tokens under way; the chosen one among equals."""
    engine, at, _ = candidates.urls[chosen].rpartition("@")
    ranks = [index for index, url in enumerate(candidates.urls) if at and url.startswith(f"{engine}@")]
    return min(ranks, key=lambda index: (candidates[index].tokens, index != chosen), default=chosen)
