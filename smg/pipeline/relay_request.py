"""A request that is passed on to an HTTP engine, and what it is for one engine: the model by that engine's name, and its rank.

Made by `smg.api.relay`, which brings the functions that change a body; this file knows which fields, not how bodies are written.
"""

import asyncio
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from smg.engine import HttpRequest
from smg.types.job import Routing, Sampling
from smg.worker import EngineRecord

__all__ = ["RelayRequest", "Splice", "changed", "engine_name", "message_for"]

# Gives a body with other values of fields, each JSON: the first are added where the body has none, the others are not.
Splice = Callable[[bytes, Mapping[str, bytes], Mapping[str, bytes]], bytes]

NOTHING: Mapping[str, bytes] = {}
INLINE_BYTES = 65536  # larger bodies are rewritten beside the event loop
# By which vLLM (vllm/entrypoints/openai) and SGLang 0.5.6 and later take a rank; SGLang before that reads a field of the body, whose name
# has changed once.
RANK_HEADER = "x-data-parallel-rank"
RANK_FIELDS = ("data_parallel_rank", "routed_dp_rank")


class RelayRequest(Struct, frozen=True, kw_only=True):
    """`model`: the model's own id. `name`: what the body calls it, empty where it does not; `canonical`: the same, with the configuration's
    aliases resolved; `rename(body, name)`: the body for an engine that calls it otherwise. `headers`: whole lines; `keyless`: the client's
    own key is among them. `text`: the prompt, for policies; `sampling`: how much is asked for, for what is charged beforehand.

    `ends`: streams of such answers end with an event that `smg.pipeline.pour` knows. `splice`: changes fields of the body, None where that
    is no JSON object. `apart`: two engines can compute it together; `batch`: prompts times choices; `scored`: the prompt's own log
    probabilities are asked for.
    """

    request_id: str
    endpoint: str
    model: str
    name: str
    canonical: str
    target: str
    body: bytes
    rename: Callable[[bytes, str], bytes]
    splice: Splice | None = None
    apart: bool = False
    batch: int = 1
    scored: bool = False
    method: str = "POST"
    headers: str = ""
    keyless: bool = False
    text: str = ""
    routing: Routing = Routing()
    sampling: Sampling = Sampling()
    stream: bool = False
    ends: bool = False
    deadline_s: float = float("inf")


async def message_for(request: RelayRequest, record: EngineRecord) -> HttpRequest:
    """Gives the request as one engine, or one rank of it, gets it."""
    body, name = request.body, engine_name(request.canonical, record)
    if name != request.name:
        body = await _rewritten(body, request.rename, name)
    message = HttpRequest(method=request.method, target=request.target, headers=request.headers, body=body)
    if record.rank is None:
        return message
    message = structs.replace(message, headers=f"{message.headers}{RANK_HEADER}: {record.rank}\r\n")
    if record.runtime != "sglang" or request.splice is None:
        return message
    return await changed(request, message, dict.fromkeys(RANK_FIELDS, b"%d" % record.rank))


async def changed(
    request: RelayRequest, message: HttpRequest, values: Mapping[str, bytes], too: Mapping[str, bytes] = NOTHING
) -> HttpRequest:
    """Gives a message with other values in its body, which must be a JSON object; those of `too` only where it has such fields."""
    assert request.splice is not None
    return structs.replace(message, body=await _rewritten(message.body, request.splice, values, too))


async def _rewritten(body: bytes, rewrite: Callable[..., bytes], *how: object) -> bytes:
    return await asyncio.to_thread(rewrite, body, *how) if len(body) > INLINE_BYTES else rewrite(body, *how)


def engine_name(name: str, record: EngineRecord) -> str:
    """Gives what an engine calls the model that the client calls `name`. A name that the engine itself lists stays as it is."""
    known = (record.info.served_name, *record.info.names)
    return name if not name or name in known else record.info.served_name
