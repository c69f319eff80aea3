"""Makes the policy that the configuration asks for. Called by the pipeline's route stage, once a model."""

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest
from smg.policy.manual import Manual

__all__ = ["build_policy"]

KEYED = ("manual", "consistent_hashing")


class KeyFirst(Policy):
    """Any policy, but requests with a routing key are routed as `manual` does (`--routing-key-override`)."""

    def __init__(self, policy: Policy, *, config: Routing, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._policy = policy
        self._manual = Manual(config, shm=shm)

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        policy = self._manual if request.routing.key else self._policy
        chosen = policy.select(candidates, request=request)
        self.cached_tokens, self.rank = policy.cached_tokens, policy.rank
        return chosen


def build_policy(config: Routing, *, shm: Shm) -> Policy:
    """Gives a policy of its own for one set of engines. KeyError when there is none of the name."""
    policy = POLICIES.get(config.policy)(config, shm=shm)
    return KeyFirst(policy, config=config, shm=shm) if config.routing_key_override and config.policy not in KEYED else policy
