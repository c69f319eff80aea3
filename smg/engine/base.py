"""What the gateway asks of any engine, and what it gets back: the one interface behind which all protocols live.

A gRPC driver is a mapping and nothing else: `encode(request)` gives the protobuf message, `path("Generate")` the method, `decode(message)`
one message's meaning, and `smg.engine.answer.Answer` makes of these the deltas that the contract promises. `smg.engine.grpc.GrpcEngine`
does the calls with grpc.aio. The native data plane sends what `encode` would serialize to (`smg.engine.writer`) with the same metadata, and
reads the fields that `decode` reads, by their numbers in `service`'s descriptors; it must make of them what `decode` and `Answer` do.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from google.protobuf.descriptor import ServiceDescriptor
from msgspec import Struct

from smg._ext import Call, Sink
from smg.errors import EngineError, Unimplemented
from smg.registry import Registry
from smg.types.job import Constraint

__all__ = [
    "ENGINES",
    "Engine",
    "EngineDelta",
    "EngineFinish",
    "EngineOptions",
    "EngineRequest",
    "Failed",
    "Features",
    "KvTransfer",
    "Load",
    "ModelInfo",
    "ResolvedSampling",
    "ServerInfo",
    "TokenScores",
]

EngineFinish: TypeAlias = Literal["stop", "length", "abort", "tool_calls", "content_filter"]
# How prefill and decode engines of a protocol work together: not at all, one after the other, or both at once.
Disaggregation: TypeAlias = Literal["none", "sequential", "parallel"]
# Is told of what ended a request although its call goes on.
Failed: TypeAlias = Callable[[EngineError], object]


class Features(Struct, frozen=True, kw_only=True):
    """What a protocol can carry. A request that needs more is refused by `Engine.check`, naming engine and parameter."""

    n: bool = True
    stop_strings: bool = True
    seed: bool = True
    logit_bias: bool = True
    min_tokens: bool = True
    min_p: bool = True
    logprobs: bool = True
    prompt_logprobs: bool = False
    constraints: frozenset[str] = frozenset()
    reasoning_first: bool = False  # a constraint can wait for the end of thinking
    loads: bool = True
    kv_events: bool = True
    tokenizer: bool = True
    data_parallel_rank: bool = False
    disaggregation: Disaggregation = "none"


class ResolvedSampling(Struct, frozen=True, kw_only=True):
    """Sampling with every default filled in: the client's value, else the model's, else the neutral one given here."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1 = off; drivers translate to what their engine calls off
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = {}
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1


class KvTransfer(Struct, frozen=True, kw_only=True):
    """What one leg of a request is told about the prompt's KV cache on its way from the prefill engine to the decode engine.

    `params`: the connector's own JSON (vLLM). Else both legs meet at `host`:`port`, in `room`, a number that no other request has.
    """

    params: str = ""
    host: str = ""
    port: int = 0
    room: int = 0


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One Generate call, in no engine's words. `stop_token_ids` already holds EOS ids where the engine does not know them.

    `logprobs`/`prompt_logprobs`: None = none, k = that many alternatives a token. `packed_ids`: the prompt's ids as they stand on the wire,
    where somebody has them already.
    """

    request_id: str
    prompt_ids: Sequence[int]
    packed_ids: bytes = b""
    prompt_text: str = ""
    sampling: ResolvedSampling = ResolvedSampling()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    reasoning_first: bool = False  # a constraint must not bind before the end of thinking
    stream: bool = True
    data_parallel_rank: int | None = None
    priority: int = 0
    transfer: KvTransfer | None = None


class TokenScores(Struct, frozen=True, kw_only=True):
    """Log probabilities as engines send them: parallel lists, one entry a token; `top[i]` = (ids, values) of the alternatives."""

    ids: list[int]
    values: list[float | None]
    top: list[tuple[list[int], list[float]]] = []


class EngineDelta(Struct, frozen=True, kw_only=True):
    """One step of one choice, normalised: joined over a choice, `token_ids` are exactly the generated ids, each once.

    Counts are cumulative for the choice. `finish` is set on the last delta of the choice and on no other; `matched` is then the stop string
    or token id that the engine named. `transfer`: what a prefill engine tells the decode engine.
    """

    choice: int = 0
    token_ids: list[int] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    logprobs: TokenScores | None = None
    prompt_logprobs: TokenScores | None = None
    finish: EngineFinish | None = None
    matched: str | int | None = None
    transfer: str = ""


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What the engine says of its model; 0 and empty where it says nothing."""

    model_path: str = ""
    served_name: str = ""
    tokenizer_path: str = ""
    context_length: int = 0
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    is_generation: bool = True
    supports_vision: bool = False
    default_sampling_json: str = ""
    names: tuple[str, ...] = ()  # further ones that it answers to, as a list of models has them


class ServerInfo(Struct, frozen=True, kw_only=True):
    """What the engine says of its server. `bootstrap_port`: where a prefill engine hands over its KV cache, 0 = it does not say."""

    version: str = ""
    active_requests: int = 0
    data_parallel_size: int = 1
    kv_connector: str = ""
    kv_engine_id: str = ""
    bootstrap_port: int = 0


class Load(Struct, frozen=True, kw_only=True):
    """Load of one data-parallel rank: requests, tokens in the KV cache, and tokens queued that no cache holds."""

    rank: int = 0
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    max_tokens: int = 0
    waiting_uncached_tokens: int = 0
    generated_per_s: float = 0.0


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How to reach an engine. Paths name PEM files; times are in seconds, sizes in bytes."""

    api_key: str | None = None
    connect_timeout_s: float = 5.0
    unary_timeout_s: float = 5.0
    max_message_bytes: int = 512 * 1024 * 1024
    max_archive_bytes: int = 512 * 1024 * 1024
    ca_cert_path: str | None = None
    client_cert_path: str | None = None
    client_key_path: str | None = None
    data_plane: Literal["aio", "native"] = "aio"
    max_connections: int = 1024  # of HTTP engines
    health_path: str = "/health"


class Engine(ABC):
    """A connection to one engine. The constructor has no side effects; `start` connects lazily, `close` ends every call.

    Every method raises the `EngineError` family only, and ends by its own deadline. `service`: the gRPC service, where there is one.
    """

    runtime: str
    features: Features
    service: ServiceDescriptor

    def __init__(self, url: str, *, options: EngineOptions | None = None) -> None:
        self.url = url
        self.options = options or EngineOptions()

    @abstractmethod
    async def start(self) -> None:
        """Opens the channel; does not wait for the engine to answer."""

    @abstractmethod
    async def close(self) -> None:
        """Cancels what is running and closes the channel."""

    @abstractmethod
    def check(self, request: EngineRequest) -> None:
        """Raises UnsupportedParameter when the protocol cannot carry the request. No I/O."""

    @abstractmethod
    def generate(self, request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        """Runs the request. Closing the iterator (`aclose`) cancels the call at the engine; so does the deadline, as EngineTimeout.

        A stream that ends before every choice had its `finish` raises EngineProtocol.
        """

    async def reach(self, *, timeout_s: float) -> None:
        """Waits for a connection, for who must know that a request which fails before it was never seen by the engine.

        Raises EngineUnavailable when there is none within `connect_timeout_s`, EngineTimeout when `timeout_s` is over first.
        """
        raise Unimplemented(f"the {self.runtime} engine's connection cannot be waited for")

    @property
    def native(self) -> bool:
        """True when `generate_into` can be used, with the field tables of `service`."""
        return False

    @property
    def patient(self) -> bool:
        """True when a call that is left before it has answered anything must run on for a moment, so that the engine hears of it at all."""
        return False

    async def generate_into(self, sink: Sink, request: EngineRequest, *, timeout_s: float, failed: Failed | None = None) -> Call:
        """Starts the request on the native plane, its messages going to `sink`. The deadline is also the caller's to keep.

        `failed` is called when something else than the call itself ends the request.
        """
        raise Unimplemented(f"the {self.runtime} engine has no native data plane")

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Tells the engine to drop the request. Unknown ids are not an error."""

    @abstractmethod
    async def health(self) -> bool:
        """True when the engine says that it serves; raises when it cannot be asked."""

    @abstractmethod
    async def model_info(self) -> ModelInfo:
        """Asks for the model's facts."""

    @abstractmethod
    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""

    @abstractmethod
    async def loads(self) -> list[Load]:
        """Asks for the load of each rank; an empty list where the protocol has none."""

    @abstractmethod
    async def tokenizer_archive(self) -> bytes:
        """Fetches the tokenizer's zip, its sha256 checked; EngineProtocol when the sum is wrong, Unimplemented when not offered."""


ENGINES: Registry[type[Engine]] = Registry("engine")
