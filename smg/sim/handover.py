"""What prefill and decode engines are told of each other's KV cache, in vLLM's and in SGLang's words, and what becomes of it here.

Called by the protocols: request in, `pin` and `transfer` of its `Submission` out; and the fetching, which a call waits for.
"""

import asyncio
from typing import Any

from smg.sim.options import Role
from smg.sim.ranks import Ranks
from smg.sim.request import Call, Refused, Transfer
from smg.sim.script import Fault
from smg.sim.transfer import claim
from smg.types.json import JsonObject

__all__ = ["Fetches", "handed", "parameters_transfer", "room_of"]

CLAIM_WAIT_S = 5.0


class Fetches:
    """The transfers under way at a decode engine."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, call: Call) -> "asyncio.Task[None] | None":
        """Fetches the prompt's KV from the prefill engine; then the call is queued, or fails. None: there is nothing to fetch."""
        if call.submission.transfer is None:
            return None
        task = asyncio.create_task(self._fetch(call, call.submission.transfer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self, call: Call, task: "asyncio.Task[None] | None") -> None:
        """The call is over. Where its cache is not required it is fetched all the same: that is how the prefill engine may forget it."""
        if task is not None and call.submission.transfer and call.submission.transfer.required:
            task.cancel()

    def give_up(self, transfer: Transfer | None) -> None:
        """Tells the prefill engine of a request that was refused, as vLLM does."""
        if transfer is not None and transfer.host:
            task = asyncio.create_task(claim(transfer.host, port=transfer.port, name=transfer.name, wait_s=0.0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch(self, call: Call, wanted: Transfer) -> None:
        tokens = None
        if wanted.host:
            wait_s = CLAIM_WAIT_S if wanted.required else 0.0  # where it is not required, the prefill has ended before
            tokens = await claim(wanted.host, port=wanted.port, name=wanted.name, wait_s=wait_s)
        scheduler = self._ranks.of(call)
        scheduler.counters.transfers += tokens is not None
        scheduler.counters.transfers_failed += tokens is None
        if tokens is None and wanted.required:
            said = f"there is no KV cache {wanted.name!r} at {wanted.host}:{wanted.port}"
            scheduler.fail(call, Fault(kind="error", code="INTERNAL", said=said))
        else:
            scheduler.enqueue(call, remote_prompt=tokens is not None)


def parameters_transfer(parameters: JsonObject) -> Transfer | None:
    """Reads vLLM's `kv_transfer_params` as `handed` wrote them; None when there is nothing to fetch. What cannot be fetched is computed."""
    if not parameters.get("do_remote_prefill"):
        return None
    host, port, name = parameters.get("remote_host"), parameters.get("remote_port"), parameters.get("remote_request_id")
    if isinstance(host, str) and isinstance(port, int) and isinstance(name, str):
        return Transfer(host=host, port=port, name=name, required=False)
    return Transfer(host="", port=0, name="", required=False)


def handed(call: Call, *, engine_id: str, host: str, port: int) -> JsonObject:
    """Gives the parameters with which a vLLM decode engine finds this prompt's KV."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine_id,
        "remote_request_id": call.submission.pin or "",
        "remote_block_ids": [],
        "remote_host": host,
        "remote_port": port,
    }


def room_of(role: Role, *, host: str, port: int, room: int | None) -> tuple[str | None, Transfer | None]:
    """Gives pin and transfer of an SGLang request. Raises Refused when the engine has a role and the request no room."""
    if role == "regular":
        return None, None
    if room is None:
        raise Refused("disaggregated request without bootstrap room id")
    name = f"room-{room}"
    if role == "prefill":
        return name, None
    return None, Transfer(host=host, port=port, name=name, required=True)
