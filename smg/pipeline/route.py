"""Route stage: chooses an engine for a job and counts the load there before anything is sent."""

from collections.abc import Callable

from smg.errors import NoEngine
from smg.policy import Policy, RouteRequest
from smg.types.job import Routing
from smg.worker import EngineRecord, Lease, WorkerView

__all__ = ["Router"]


class Router:
    """Keeps one policy a model, since a policy's state is about one set of engines."""

    def __init__(self, view: WorkerView, *, make_policy: Callable[[], Policy]) -> None:
        self._view = view
        self._make_policy = make_policy
        self._policies: dict[str, Policy] = {}

    def route(self, model: str, *, prompt_ids: list[int], routing: Routing, avoid: frozenset[int]) -> tuple[EngineRecord, Lease]:
        """Gives the chosen engine and the lease that counts the request there. Raises NoEngine when none is ready.

        Slots in `avoid` have just failed this request; they are taken again only when there is no other.
        """
        candidates = self._view.candidates(model)
        if not candidates:
            raise NoEngine(f"no engine is ready for {model!r}", retry_after_s=1)
        candidates = [candidate for candidate in candidates if candidate.slot not in avoid] or candidates
        policy = self._policies.get(model) or self._policies.setdefault(model, self._make_policy())
        chosen = candidates[policy.select(candidates, request=RouteRequest(prompt_ids=prompt_ids, routing=routing))]
        record = next(record for record in self._view.engines(model) if record.slot == chosen.slot)
        return record, self._view.acquire(chosen.slot, len(prompt_ids))
