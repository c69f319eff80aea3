"""What the gRPC protocols share: running a call to its end with faults and cancellation, the tokenizer's zip, KV events, the health answer.

A protocol file subclasses `Service` beside its generated servicer, says how a request becomes a `Submission`, and renders `Output`s.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from smg.pb import common_pb2
from smg.sim.counters import Counters
from smg.sim.handover import Fetches
from smg.sim.kvlog import Batch, Cleared, HistoryLost, Removed, Stored
from smg.sim.options import SimOptions
from smg.sim.ranks import Ranks
from smg.sim.request import Call, Output, Refused, Submission
from smg.sim.script import Fault
from smg.sim.wire import distress

__all__ = ["VERSION", "Context", "Engine", "Service", "batch_message", "join", "matched_fields"]

ARCHIVE_CHUNK_BYTES = 64 * 1024
INTERNAL_ERROR = 2  # HTTP/2 error code
VERSION = "0.0.0-sim"

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used here."""

    async def write(self, message: Any) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> Any: ...


class Engine:
    """What a protocol is given: the engine's parts, and `die`, which ends the engine at once."""

    def __init__(self, options: SimOptions, *, scheduler: Ranks, die: Callable[[], None]) -> None:
        self.options = options
        self.scheduler = scheduler
        self.model = scheduler.model
        self.die = die
        self.archive: tuple[bytes, str] | None = None
        self.status_port = 0
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._started_s = loop.time()

    @property
    def uptime_s(self) -> float:
        """Seconds since start."""
        return self._clock() - self._started_s

    @property
    def counters(self) -> Counters:
        """What all ranks counted."""
        return self.scheduler.counters

    def healthy(self) -> bool:
        """Answers one health check, as the options say."""
        counters = self.scheduler.ranks[0].counters
        counters.health_checks += 1
        if self.options.health == "flap":
            return (counters.health_checks - 1) // self.options.health_flap_every % 2 == 0
        return self.options.health == "ok"

    def loads(self) -> list[dict[str, Any]]:
        """Gives the fields that every protocol's SchedulerLoad has, for each rank."""
        return [self._load(number, rank.counters) for number, rank in enumerate(self.scheduler.ranks)]

    def _load(self, number: int, counters: Counters) -> dict[str, Any]:
        options = self.options
        used, most = counters.blocks_used * options.block_size, options.kv_blocks * options.block_size
        return {
            "dp_rank": number,
            "num_running_reqs": counters.running,
            "num_waiting_reqs": counters.waiting,
            "num_total_reqs": counters.running + counters.waiting,
            "num_used_tokens": used,
            "max_total_num_tokens": most,
            "token_usage": used / most,
            "cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
            "utilization": counters.running / options.max_running,
            "max_running_requests": options.max_running,
            "num_waiting_uncached_tokens": counters.waiting_uncached_tokens,
        }

    def loads_told(self, pb: Any) -> Any:
        """Gives the GetLoadsResponse of a protocol's module that sums the ranks up, too."""
        loads = [pb.SchedulerLoad(**load) for load in self.loads()]
        total = pb.AggregateMetrics(
            total_running_reqs=sum(load.num_running_reqs for load in loads),
            total_waiting_reqs=sum(load.num_waiting_reqs for load in loads),
            total_reqs=sum(load.num_total_reqs for load in loads),
            avg_token_usage=sum(load.token_usage for load in loads) / len(loads),
            avg_utilization=sum(load.utilization for load in loads) / len(loads),
        )
        return pb.GetLoadsResponse(timestamp=str(time.time()), version=VERSION, dp_rank_count=len(loads), loads=loads, aggregate=total)


class Service(Generic[Request, Response]):
    """One protocol's servicer. `response` is its Generate answer's class."""

    response: type[Response]

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self._fetches = Fetches(engine.scheduler)

    @abstractmethod
    def submission(self, request: Request) -> Submission:
        """Reads a Generate request; raises Refused when this engine would."""

    @abstractmethod
    def is_streamed(self, request: Request) -> bool:
        """Says whether the client wants deltas."""

    @abstractmethod
    def render(self, call: Call, output: Output, *, streamed: bool) -> list[Response]:
        """Gives the messages for one output; not streamed, it is the choice's whole output."""

    async def after_abort(self, context: Context) -> bool:
        """Does what the engine does to a call after Abort; True when nothing shall be rendered and the call is over."""
        return False

    async def Generate(self, request: Request, context: Context) -> None:
        """Serves one call to its end, whichever of the many it has."""
        try:
            call = self.scheduler.submit(self.submission(request))
        except Refused as refused:
            await context.abort(grpc.StatusCode[refused.status], refused.message)
            return
        fetch = self._fetches.start(call)
        try:
            await self._serve(call, streamed=self.is_streamed(request), context=context)
        except asyncio.CancelledError:
            self.scheduler.of(call).cancel(call)
            raise
        finally:
            self.scheduler.of(call).drop(call)
            self._fetches.end(call, fetch)

    async def _serve(self, call: Call, *, streamed: bool, context: Context) -> None:
        interval = self.engine.options.stream_interval if streamed else None
        held: dict[int, list[Output]] = {}
        unfinished = call.submission.n
        while unfinished:
            output = await call.read()
            if output.fault is not None:
                await self._strike(output.fault, context)
                return
            if output.finish == "abort" and await self.after_abort(context):
                return
            parts = held.setdefault(output.choice, [])
            parts.append(output)
            unfinished -= output.finish is not None
            if output.finish is None and (interval is None or len(parts) < interval):
                continue
            for message in self.render(call, join(parts), streamed=streamed):
                await context.write(message)
            held[output.choice] = []

    async def _strike(self, fault: Fault, context: Context) -> None:
        """Does to the connection what a fault is."""
        if fault.kind in ("rst", "goaway", "die"):
            code = int(fault.code or (INTERNAL_ERROR if fault.kind == "rst" else 0))
            await context.write(self.response.FromString(distress(fault.kind, code)))
            await asyncio.Event().wait()  # until the client's side is closed, which cancels this
        elif fault.kind == "error":
            await context.abort(grpc.StatusCode[fault.code or "INTERNAL"], fault.said)

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Context) -> None:
        """Streams the model folder's zip; the last message alone carries the SHA-256."""
        if self.engine.archive is None:
            self.engine.archive = await asyncio.to_thread(self.engine.model.archive)
        data, digest = self.engine.archive
        for start in range(0, len(data), ARCHIVE_CHUNK_BYTES):
            last = start + ARCHIVE_CHUNK_BYTES >= len(data)
            piece = data[start : start + ARCHIVE_CHUNK_BYTES]
            await context.write(common_pb2.GetTokenizerChunk(data=piece, sha256=digest if last else ""))

    async def SubscribeKvEvents(self, request: common_pb2.SubscribeKvEventsRequest, context: Context) -> None:
        """Relays the KV logs. DATA_LOSS: what was asked for is gone. OUT_OF_RANGE: there is never anything to go on from."""
        if not self.engine.options.kv_events:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "KV events are switched off")
        batches = self.scheduler.subscribe(request.start_sequence_number)
        try:
            async for rank, batch in batches:
                await context.write(batch_message(batch, rank=rank, block_size=self.engine.options.block_size))
        except HistoryLost as lost:
            await context.abort(grpc.StatusCode.DATA_LOSS if lost.replays else grpc.StatusCode.OUT_OF_RANGE, str(lost))
        finally:
            await batches.aclose()  # type: ignore[attr-defined]

    async def FlushCache(self, request: common_pb2.FlushCacheRequest, context: Context) -> common_pb2.FlushCacheResponse:
        """Empties the prefix cache if the engine is, or becomes in time, idle."""
        done = await self.scheduler.flush_cache(request.timeout_s)
        return common_pb2.FlushCacheResponse(success=done, message="flushed" if done else "requests are running")


def matched_fields(output: Output) -> dict[str, Any]:
    """Gives the field of the `matched_stop` oneof, which has the same two names in four protocols; nothing when nothing matched."""
    if output.matched is None:
        return {}
    return {"matched_stop_str": output.matched} if isinstance(output.matched, str) else {"matched_token_id": output.matched}


def join(parts: Sequence[Output]) -> Output:
    """Makes one output of consecutive ones of a choice."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    return Output(
        choice=last.choice,
        ids=[number for part in parts for number in part.ids],
        scores=[score for part in parts for score in part.scores],
        made=last.made,
        finish=last.finish,
        matched=last.matched,
        matched_eos=last.matched_eos,
    )


def batch_message(batch: Batch, *, rank: int, block_size: int) -> common_pb2.KvEventBatch:
    """Gives a batch in its wire form. Event ids are unique over the feed."""
    events = []
    for index, event in enumerate(batch.events):
        message = common_pb2.KvCacheEvent(event_id=batch.sequence << 16 | index)
        if isinstance(event, Stored):
            blocks = [common_pb2.KvBlock(block_hash=name, token_ids=ids, block_size=block_size) for name, ids in event.blocks]
            message.stored.CopyFrom(common_pb2.KvBlocksStored(blocks=blocks, parent_block_hash=event.parent))
        elif isinstance(event, Removed):
            message.removed.CopyFrom(common_pb2.KvBlocksRemoved(block_hashes=event.hashes))
        elif isinstance(event, Cleared):
            message.cleared.CopyFrom(common_pb2.KvCacheCleared())
        events.append(message)
    load = common_pb2.EngineLoad(load_only=True) if batch.heartbeat else None
    return common_pb2.KvEventBatch(sequence_number=batch.sequence, timestamp=batch.at_s, events=events, dp_rank=rank, load=load)
