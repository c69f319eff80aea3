"""Token buckets that several nodes share, in Redis or Valkey. Imported only where `--rate-limit-url` names such a server.

A bucket is one key: the moment, in µs of the server's clock, at which it will be full again. One script reads and writes all buckets of a
call at once; their names share a hash tag, so that they lie in one node of a cluster. While the server does not answer, this node limits by
itself (open) or lets nothing pass (closed), and asks it again only now and then.
"""

import asyncio
import hashlib
import logging
import time

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from smg.errors import LimitsUnavailable
from smg.middleware.limits import MINUTE_NS, Price, Store
from smg.obs.metrics import Meter

__all__ = ["SharedStore"]

log = logging.getLogger(__name__)

CALL_S = 0.05
# After a failure nobody asks for so long: a server that hangs costs one request in a while its time, not each.
REST_S = 1.0
CONNECTIONS = 16
MOST_CHARGES = 1024
CLOSE_S = 0.5
DAY_US = 86_400_000_000

# KEYS: buckets. ARGV: what a full bucket holds, or -1 to take whatever there is; then each bucket's cost. All in µs of refilling.
SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local burst, wait, full = tonumber(ARGV[1]), 0, {}
for i, key in ipairs(KEYS) do
    local cost = tonumber(ARGV[1 + i])
    local before = math.max(tonumber(redis.call('GET', key) or '0'), now)
    if burst >= 0 then
        wait = math.max(wait, before - now + math.min(cost, burst) - burst)
    end
    full[i] = math.min(before + cost, now + 86400000000)
end
if wait > 0 then
    return math.ceil(wait)
end
for i, key in ipairs(KEYS) do
    if full[i] > now then
        redis.call('SET', key, string.format('%.0f', full[i]), 'PX', math.ceil((full[i] - now) / 1000))
    else
        redis.call('DEL', key)
    end
end
return 0
"""


class SharedStore:
    """See `smg.middleware.limits.Store`. `local` is used while the server does not answer; without it nothing passes."""

    def __init__(self, url: str, *, local: Store | None, meter: Meter) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=CALL_S,
            socket_timeout=CALL_S,
            socket_connect_timeout=CALL_S,
            retry=Retry(NoBackoff(), 1),  # a connection that the server closed while it rested
        )
        self._server: Redis = Redis.from_pool(pool)
        self._script = self._server.register_script(SCRIPT)
        self._local = local
        self._failures = meter.counter("smg_rate_limit_server_failures_total", ())
        self._rests_until_s = 0.0
        self._charges: set[asyncio.Task[None]] = set()

    async def take(self, prices: list[Price]) -> int:
        """See `Store`. Raises LimitsUnavailable where nothing passes without the server."""
        wait_us = await self._call(MINUTE_NS // 1000, prices)
        if wait_us >= 0:
            return wait_us * 1000
        if self._local is None:
            raise LimitsUnavailable("the server of rate limits does not answer", retry_after_s=1)
        return await self._local.take(prices)

    def charge(self, prices: list[Price]) -> None:
        """See `Store`. Nobody waits for it; what cannot be charged is let go."""
        if len(self._charges) < MOST_CHARGES:
            task = asyncio.get_running_loop().create_task(self._charge(prices))
            self._charges.add(task)
            task.add_done_callback(self._charges.discard)

    async def close(self) -> None:
        """Waits a moment for what is still to be charged."""
        if self._charges:
            await asyncio.wait(self._charges, timeout=CLOSE_S)
        for task in list(self._charges):
            task.cancel()
        await self._server.aclose()

    async def _charge(self, prices: list[Price]) -> None:
        """Settles here what the server does not take: while it does not answer, this node's own buckets were charged beforehand."""
        if await self._call(-1, prices) < 0 and self._local is not None:
            self._local.charge(prices)

    async def _call(self, burst_us: int, prices: list[Price]) -> int:
        """Gives the script's answer; -1 when there is none."""
        if not prices or time.monotonic() < self._rests_until_s:
            return -1 if prices else 0
        keys = [f"smg:limit:{{{tag(bucket.tenant)}}}:{bucket.name}" for bucket, _ in prices]
        costs = [max(-DAY_US, min(DAY_US, cost_ns // 1000)) for _, cost_ns in prices]
        try:
            async with asyncio.timeout(CALL_S):
                answer = await self._script(keys=keys, args=[burst_us, *costs])
        except Exception as error:  # also a ValueError for a bad number, a RecursionError for deep nesting
            return self._rest(type(error).__name__)
        return answer if type(answer) is int and 0 <= answer <= DAY_US else self._rest("no answer of the script")

    def _rest(self, error: str) -> int:
        if time.monotonic() >= self._rests_until_s:
            log.warning("the server of rate limits does not answer", extra={"error": error})
        self._failures.add()
        self._rests_until_s = time.monotonic() + REST_S
        return -1


def tag(tenant: str) -> str:
    """Gives a short name for a tenant that no tenant can choose to have characters of its own in a key."""
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
