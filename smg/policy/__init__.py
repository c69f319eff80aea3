"""Routing policies: one file each, found by name in `POLICIES`. The pipeline's route stage calls the chosen one."""

__all__ = ["POLICIES", "Candidate", "Policy", "RouteRequest"]

from smg.policy import least_load, passthrough, power_of_two, random, round_robin  # noqa: F401  each registers itself
from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest
