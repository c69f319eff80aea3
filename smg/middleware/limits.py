"""What each tenant may use in a minute: requests and tokens, in all and by model. One a data worker; the buckets are all processes'.

In: the tenant's name, then each of a request's jobs with its prompt. Out: TenantLimited, or an account; a job is charged what it may use
and, when it is over, what it did use. Called by `smg.middleware.gate` and, through `smg.types.account`, by `smg.pipeline`.
"""

import math
import secrets
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import Protocol

from msgspec import UNSET, Struct

from smg.config.classes import ModelRule, RateLimit, TenantLimit, TenantLimits
from smg.errors import TenantLimited
from smg.obs.buckets import LONGEST_NS, Buckets
from smg.obs.metrics import Meter
from smg.types.job import Sampling

__all__ = ["MINUTE_NS", "Bucket", "LocalStore", "Price", "Store", "TenantAccount", "TenantMeters"]

MINUTE_NS = 60_000_000_000
# Output of a job that names no max_tokens, for the estimate.
USUAL_OUTPUT_TOKENS = 256
KEPT_TENANTS = 4096
# So that nobody can choose names that share a place. The supervisor imports this before it forks, and all data workers have the same.
SECRET = secrets.token_bytes(16)


class Bucket(Struct, frozen=True):
    """One limit of one tenant: `per_minute` of something. `key`: its place in shared memory; `name`: in a server of limits."""

    name: str
    key: int
    tenant: str
    per_minute: int

    def cost_ns(self, amount: int) -> int:
        """Gives how long the bucket takes to be refilled by `amount`, a day at most."""
        return min(amount * MINUTE_NS // self.per_minute, LONGEST_NS)


# What is to be taken from a bucket, in ns of refilling.
Price = tuple[Bucket, int]


class Store(Protocol):
    """Where buckets are kept."""

    async def take(self, prices: list[Price]) -> int:
        """Takes all of it or nothing; gives 0, or the ns after which there may be enough."""

    def charge(self, prices: list[Price]) -> None:
        """Takes whatever there is; gives back where a price is below 0."""


class LocalStore:
    """Keeps them in this node's shared memory."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def take(self, prices: list[Price]) -> int:
        """See `Store`. What was taken before a bucket refused goes back."""
        now_ns = time.monotonic_ns()
        for done, (bucket, cost_ns) in enumerate(prices):
            wait_ns = self._buckets.take(bucket.key, cost_ns, MINUTE_NS, now_ns)
            if wait_ns:
                self.charge([(taken, -cost) for taken, cost in prices[:done]])
                return wait_ns
        return 0

    def charge(self, prices: list[Price]) -> None:
        """See `Store`."""
        now_ns = time.monotonic_ns()
        for bucket, cost_ns in prices:
            self._buckets.charge(bucket.key, cost_ns, now_ns)


class Plan(Struct, frozen=True):
    """A tenant's buckets: of requests and of tokens, in all; and the rules for models."""

    tenant: str
    requests: Bucket | None
    tokens: Bucket | None
    rules: tuple[ModelRule, ...]


class TenantMeters:
    """Opens accounts. Tenants that the file does not name have its default policy, each for themselves."""

    def __init__(self, limits: TenantLimits, *, store: Store, meter: Meter) -> None:
        self.store = store
        self._limits = {tenant.tenant_key: tenant for tenant in limits.tenants}
        self._default = limits.default_policy
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._refused = meter.counter("smg_http_rate_limit_total", ("tenant_rejected",))

    async def open(self, tenant: str) -> "TenantAccount":
        """Takes one request from a tenant's bucket. Raises TenantLimited, and LimitsUnavailable."""
        plan = self._plan(tenant)
        if plan.requests is not None:
            await self.take([(plan.requests, plan.requests.cost_ns(1))])
        return TenantAccount(self, plan)

    async def take(self, prices: list[Price]) -> None:
        """Takes all of it. Raises TenantLimited with the time after which it may be tried again."""
        if prices and (wait_ns := await self.store.take(prices)):
            self._refused.add()
            raise TenantLimited("the rate limit of this tenant is used up", retry_after_s=max(math.ceil(wait_ns / 1e9), 1))

    def bucket(self, tenant: str, limit: RateLimit, kind: str, *, rule: str = "") -> Bucket | None:
        """Gives the bucket of a limit; None where there is none. `kind`: requests or tokens."""
        per_minute = limit.requests_per_minute if kind == "requests" else limit.tokens_per_minute
        if per_minute is None:
            return None
        name = f"{tenant}\n{rule}\n{kind}".encode("utf-8", "surrogatepass")
        key = int.from_bytes(blake2b(name, key=SECRET, digest_size=8).digest())
        return Bucket(f"{rule}:{kind}", key, tenant, per_minute)

    def _plan(self, tenant: str) -> Plan:
        plan = self._plans.get(tenant)
        if plan is None:
            limit: TenantLimit = self._limits.get(tenant, self._default)
            requests, tokens = (self.bucket(tenant, limit, kind) for kind in ("requests", "tokens"))
            plan = self._plans[tenant] = Plan(tenant, requests, tokens, limit.model_rules)
            if len(self._plans) > KEPT_TENANTS:
                self._plans.popitem(last=False)
        return plan


class TenantAccount:
    """One request's."""

    def __init__(self, meters: TenantMeters, plan: Plan) -> None:
        self._meters = meters
        self._plan = plan
        self._counted = False

    async def charge(self, *, model: str, prompt_tokens: int, sampling: Sampling) -> "TokenCharge":
        """Charges what a job may use. Raises TenantLimited when there is not so much left.

        A job that could use more than a full bucket holds passes when it is full, and those after it wait for longer.
        """
        plan, prices = self._plan, []
        rule = next((rule for rule in plan.rules if rule.fits(model)), None)
        if rule is not None and not self._counted:
            self._counted = True  # a request of several prompts is one
            if (bucket := self._meters.bucket(plan.tenant, rule, "requests", rule=rule.rule_id)) is not None:
                prices.append((bucket, bucket.cost_ns(1)))
        ruled = self._meters.bucket(plan.tenant, rule, "tokens", rule=rule.rule_id) if rule is not None else None
        output = USUAL_OUTPUT_TOKENS if sampling.max_tokens is UNSET else sampling.max_tokens
        tokens = prompt_tokens + output * sampling.n
        buckets = [bucket for bucket in (plan.tokens, ruled) if bucket is not None]
        await self._meters.take(prices + [(bucket, bucket.cost_ns(tokens)) for bucket in buckets])
        return TokenCharge(self._meters.store, buckets, tokens)


class TokenCharge:
    """What a job was charged; ended once by `settle` or `drop`."""

    def __init__(self, store: Store, buckets: list[Bucket], tokens: int) -> None:
        self._store = store
        self._buckets = buckets
        self._tokens = tokens

    def settle(self, tokens: int) -> None:
        """The answer is whole: `tokens` of prompt and output are what it used."""
        buckets, self._buckets = self._buckets, []
        if buckets and tokens != self._tokens:
            self._store.charge([(bucket, bucket.cost_ns(tokens) - bucket.cost_ns(self._tokens)) for bucket in buckets])

    def drop(self, *, answered: bool) -> None:
        """The answer is not whole: what nobody answered cost nothing, and else the estimate stays."""
        if answered:
            self._buckets = []
        else:
            self.settle(0)
