"""The status port: counters as JSON for scripts and tests, and the claims by which a decode engine fetches a prompt's KV."""

import math

import msgspec

from smg.sim.http import HttpRequest, Reply
from smg.sim.ranks import Ranks
from smg.sim.transfer import CLAIM_PATH

__all__ = ["Status"]

LONGEST_WAIT_S = 60.0


class Status:
    """Handles `GET /counters[?rank=…]`, `GET /kv/claim?name=…&wait_s=…`, `POST /kv/hide?count=…` and `POST /abort?request_id=…`."""

    def __init__(self, scheduler: Ranks) -> None:
        self._scheduler = scheduler

    async def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answers one request."""
        if request.path == "/counters":
            await self._counters(request, reply)
        elif request.path == CLAIM_PATH:
            await self._claim(request, reply)
        elif request.path == "/kv/hide" and request.method == "POST":
            for rank in self._scheduler.ranks:
                rank.log.hide_next(int(request.query.get("count", "1")))
            await reply.send(b"{}")
        elif request.path == "/abort" and request.method == "POST":
            known = self._scheduler.abort(request.query.get("request_id", ""))
            await reply.send(msgspec.json.encode({"known": known}))
        else:
            await reply.send(b'{"error": "not found"}', status=404)

    async def _counters(self, request: HttpRequest, reply: Reply) -> None:
        """Of the whole engine, or of one rank."""
        rank = request.query.get("rank", "")
        if rank and not (rank.isdecimal() and int(rank) < len(self._scheduler.ranks)):
            await reply.send(b'{"error": "rank"}', status=400)
            return
        counters = self._scheduler.ranks[int(rank)].counters if rank else self._scheduler.counters
        await reply.send(msgspec.json.encode(counters, enc_hook=list))

    async def _claim(self, request: HttpRequest, reply: Reply) -> None:
        try:
            wait_s = float(request.query.get("wait_s", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= LONGEST_WAIT_S:
            await reply.send(b'{"error": "wait_s"}', status=400)
            return
        tokens = await self._scheduler.take(request.query.get("name", ""), wait_s=wait_s)
        if tokens is None:
            await reply.send(b'{"error": "no such prompt"}', status=404)
        else:
            await reply.send(msgspec.json.encode({"tokens": tokens}))
