"""Routing policies: one file each, found by name in `POLICIES`. The pipeline's route stage calls the chosen one."""

__all__ = ["POLICIES", "Candidate", "Candidates", "Policy", "RouteRequest", "build_policy"]

from smg.policy import (  # noqa: F401  each registers itself
    bucket,
    cache_aware,
    consistent_hashing,
    least_load,
    manual,
    passthrough,
    power_of_two,
    prefix_hash,
    random,
    round_robin,
)
from smg.policy.base import POLICIES, Candidate, Candidates, Policy, RouteRequest
from smg.policy.build import build_policy
