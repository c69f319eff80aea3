"""What stands before inference: tenants' limits, then a seat or the queue. Made once a data worker, and only where something is limited.

Called by `smg.server.exchange` after the key was checked and before the body is read: who waits holds no body.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from smg.api.base import Request
from smg.config import Config
from smg.config.classes import read_tenant_limits
from smg.middleware.admission import Admission, Holder, Permit
from smg.middleware.bell import Bell
from smg.middleware.lanes import DEFAULT, PriorityReader, lanes_of
from smg.middleware.limits import LocalStore, Store, TenantMeters
from smg.middleware.starts import StartRate
from smg.middleware.tenant import TenantReader
from smg.obs.buckets import Buckets
from smg.obs.metrics import Meter
from smg.obs.seats import Seats
from smg.obs.shm import Shm
from smg.types.account import ACCOUNT

if TYPE_CHECKING:
    from smg.middleware.shared_limits import SharedStore

__all__ = ["Gate", "is_seated"]

# Paths that make an engine work; all others are open to who may call them at all.
COUNTED = frozenset(
    (
        *("/v1/chat/completions", "/v1/completions", "/generate", "/v1/embeddings", "/v1/classify", "/rerank", "/v1/rerank"),
        *("/v1/responses", "/v1/messages", "/v1/interactions", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
        *("/classify", "/v2/rerank", "/score", "/v1/score", "/pooling"),
    )
)


class Gate:
    """`make` gives None where nothing is limited."""

    def __init__(self, config: Config, *, shm: Shm, row: int, folder: Path, meter: Meter, engines: Callable[[], int]) -> None:
        self._tenants = TenantReader(config.tenants)
        self._priority = PriorityReader(config, meter=meter) if config.priority_scheduler.enabled else None
        self._bell = Bell(folder, row=row)
        self._admission: Admission | None = None
        self._meters: TenantMeters | None = None
        self._shared: SharedStore | None = None
        buckets = Buckets(shm)
        if is_seated(config):
            limit, rate = config.admission.max_concurrent_requests, config.admission.rate_limit_tokens_per_second
            starts = StartRate(buckets, per_second=rate, burst=limit) if rate > 0 and limit > 0 else None
            lanes = lanes_of(config, engines=engines)
            self._admission = Admission(Seats(shm), row=row, bell=self._bell, lanes=lanes, meter=meter, starts=starts)
            self._bell.open(self._admission.look)
        if config.tenants.rate_limit_enabled:
            limits = read_tenant_limits(config.tenants.rate_limit_config)
            self._meters = TenantMeters(limits, store=self._store(config, buckets, meter), meter=meter)

    @classmethod
    def make(cls, config: Config, *, shm: Shm, row: int, folder: Path, meter: Meter, engines: Callable[[], int]) -> Optional["Gate"]:
        """Gives the gate of a data worker with that `row`; `folder`: for its bell; `engines()`: how many engines there are."""
        if not is_seated(config) and not config.tenants.rate_limit_enabled:
            return None
        return cls(config, shm=shm, row=row, folder=folder, meter=meter, engines=engines)

    @staticmethod
    def counts(http: Request) -> bool:
        """True for a request that has to pass here. HEAD and the like reach no handler of these paths."""
        return http.path in COUNTED

    async def admit(self, http: Request, *, authorized: str, holder: Holder) -> Permit | None:
        """Lets a request pass, after a wait if need be; a permit is to be closed at its end.

        Raises TenantLimited, LimitsUnavailable, QueueFull, QueueTimeout. Cancelling it leaves the queue.
        """
        tenant = self._tenants.name(http.headers, authorized=authorized, client=http.client)
        if self._meters is not None:
            ACCOUNT.set(await self._meters.open(tenant))
        if self._admission is None:
            return None
        permit = await self._admission.enter(self._priority.rank(http.headers, tenant) if self._priority is not None else DEFAULT)
        permit.hold(holder)
        return permit

    async def close(self) -> None:
        """Closes what it opened."""
        if self._admission is not None:
            self._admission.close()
        self._bell.close()
        if self._shared is not None:
            await self._shared.close()

    def _store(self, config: Config, buckets: Buckets, meter: Meter) -> Store:
        local = LocalStore(buckets)
        if not config.tenants.rate_limit_url:
            return local
        from smg.middleware.shared_limits import SharedStore

        spare = local if config.tenants.rate_limit_fail == "open" else None
        self._shared = SharedStore(config.tenants.rate_limit_url, local=spare, meter=meter)
        return self._shared


def is_seated(config: Config) -> bool:
    """True where requests need a seat."""
    return config.admission.max_concurrent_requests > 0 or config.priority_scheduler.enabled
