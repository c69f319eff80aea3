"""What every gRPC driver shares: the channel, deadlines, cancelling, errors, the tokenizer's transfer. Subclassed by one file a protocol.

A driver gives the service's descriptor, its features and the mapping of messages; see `smg.engine.base` for how the parts fit.
"""

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from smg._ext import Call, Sink
from smg.engine.answer import Answer
from smg.engine.base import Engine, EngineDelta, EngineOptions, EngineRequest, Failed, Load, ModelInfo, ServerInfo
from smg.engine.channel import call_metadata, connected, open_channel
from smg.engine.events import KvBatch, batch_of
from smg.engine.native import Messages, NativeLink
from smg.engine.reader import AioReader, NativeReader, Reader, translated
from smg.engine.replies import delta_of, load_of, model_info_of, server_info_of
from smg.engine.sampling import PARAMS
from smg.engine.writer import RequestWriter
from smg.errors import EngineProtocol, EngineRejected, EngineUnavailable, UnsupportedParameter
from smg.pb import common_pb2

__all__ = ["GrpcEngine"]

Made = TypeVar("Made")
Reply: TypeAlias = Any  # a protobuf message of the driver's own protocol

# Parameter that a protocol may lack → whether a request needs it.
NEEDS: dict[str, Callable[[EngineRequest], bool]] = {
    "n": lambda request: request.sampling.n > 1,
    "logit_bias": lambda request: bool(request.sampling.logit_bias),
    "min_tokens": lambda request: request.sampling.min_tokens > 0,
    "min_p": lambda request: request.sampling.min_p > 0,
    "logprobs": lambda request: request.logprobs is not None,
    "prompt_logprobs": lambda request: request.prompt_logprobs is not None,
    "data_parallel_rank": lambda request: request.data_parallel_rank is not None,
}
LONGEST_TIMEOUT_S = 7 * 24 * 3600.0
ARCHIVE_TIMEOUT_S = 60.0
SUBSCRIPTION_S = 3600.0


class GrpcEngine(Engine):
    """An engine behind a gRPC service. Drivers add `service`, `features` and `encode`, and what their protocol says in its own way."""

    def __init__(self, url: str, *, options: EngineOptions | None = None) -> None:
        super().__init__(url, options=options)
        self.call_metadata = call_metadata(self.options)
        self._lacking = [(param, asked) for param, asked in NEEDS.items() if not getattr(self.features, param)]
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Callable[..., Any]] = {}
        self._link: NativeLink | None = None
        self._generate_path = self.path("Generate")
        self._writer = RequestWriter(self.service.methods_by_name["Generate"].input_type, self.encode)

    @abstractmethod
    def encode(self, request: EngineRequest) -> Message:
        """Gives the protocol's GenerateRequest. ValueError when a value does not fit its field. Pure."""

    def decode(self, message: Reply) -> EngineDelta:
        """Gives one GenerateResponse as it stands: `finish` set if it closes its choice, `token_ids` whatever it holds. Pure."""
        return delta_of(message)

    @classmethod
    def path(cls, method: str) -> str:
        """Gives the HTTP/2 path of a method."""
        return f"/{cls.service.full_name}/{method}"

    async def start(self) -> None:
        """Opens the channel; does not wait for the engine to answer. Raises ConfigError for a bad URL or certificate file."""
        self._channel = await open_channel(self.url, options=self.options)
        self._methods = {method.name: self._method(self._channel, method) for method in self.service.methods}
        if self.options.data_plane == "native":
            self._link = NativeLink(self.url, options=self.options)

    async def close(self) -> None:
        """Cancels what is running and closes the channel. May be called twice."""
        channel, self._channel, self._methods = self._channel, None, {}
        if self._link is not None:
            self._link.close()
        if channel is not None:
            await channel.close(None)

    def check(self, request: EngineRequest) -> None:
        """Raises UnsupportedParameter when the protocol cannot carry the request.

        Stop strings are never refused, because the pipeline matches them itself; nor is a seed, which OpenAI calls best effort.
        """
        for param, asked in self._lacking:
            if asked(request):
                raise UnsupportedParameter(f"the {self.runtime} engine does not support {param}", param=param)
        if request.constraint is not None and request.constraint.kind not in self.features.constraints:
            kind = request.constraint.kind
            param = request.constraint.param or PARAMS[kind]
            name = f"{param} {kind}" if param == "response_format" else param
            raise UnsupportedParameter(f"the {self.runtime} engine does not support {name}", param=param)

    async def generate(self, request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        """Runs the request; see `Engine.generate`. Returns with the last choice's end, not with the call's."""
        answer = Answer(request)
        reader = await self._reader(request, timeout_s=min(timeout_s, LONGEST_TIMEOUT_S))
        try:
            while (reply := await reader.read()) is not None:
                yield answer.take(self.decode(reply))
                if answer.finished:
                    return
        finally:
            reader.leave(whole=answer.finished)
        raise EngineProtocol("the engine ended its answer without finishing it")

    async def reach(self, *, timeout_s: float) -> None:
        """Waits for a connection of the plane that requests go by; see `Engine.reach`."""
        if self._channel is None:
            raise EngineUnavailable("the connection to the engine is closed")
        if self._link is not None:
            await self._link.reach(timeout_s=timeout_s)
        else:
            await connected(self._channel, timeout_s=timeout_s, connect_timeout_s=self.options.connect_timeout_s)

    @property
    def native(self) -> bool:
        """True when `generate_into` can be used."""
        return self._link is not None

    async def generate_into(self, sink: Sink, request: EngineRequest, *, timeout_s: float, failed: Failed | None = None) -> Call:
        """Starts the request on the native plane; see `Engine.generate_into`. Nothing but the call itself ends it."""
        if self._link is None:
            raise EngineUnavailable("the connection to the engine is closed")
        message = self._made(self._writer.write, request)
        return await self._link.call(self._generate_path, message, sink, timeout_s=min(timeout_s, LONGEST_TIMEOUT_S))

    async def abort(self, request_id: str) -> None:
        """Tells the engine to drop the request."""
        known = self.service.methods_by_name["Abort"].input_type.fields_by_name
        fields = {"request_ids": [request_id], "request_id": request_id, "reason": "client gone"}
        await self._ask("Abort", **{name: value for name, value in fields.items() if name in known})

    async def health(self) -> bool:
        """True when the engine says that it serves."""
        return bool((await self._ask("HealthCheck")).healthy)

    async def model_info(self) -> ModelInfo:
        """Asks for the model's facts."""
        return model_info_of(await self._ask("GetModelInfo"))

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        return server_info_of(await self._ask("GetServerInfo"))

    async def loads(self) -> list[Load]:
        """Asks for the load of each rank; gives nothing where the protocol has no such call."""
        return [load_of(entry) for entry in (await self._ask("GetLoads")).loads] if self.features.loads else []

    async def tokenizer_archive(self) -> bytes:
        """Fetches the tokenizer's zip. EngineProtocol when its sha256 is wrong or absent, or when it is over `max_archive_bytes`."""
        reader = AioReader(self._open("GetTokenizer", common_pb2.GetTokenizerRequest(), timeout_s=ARCHIVE_TIMEOUT_S), runtime=self.runtime)
        chunks: list[bytes] = []
        size, told = 0, ""
        try:
            while (chunk := await reader.read()) is not None:
                chunks.append(chunk.data)
                size, told = size + len(chunk.data), chunk.sha256
                if size > self.options.max_archive_bytes:
                    raise EngineProtocol("the engine's tokenizer archive is over the size limit")
        finally:
            reader.leave(whole=False)
        if not told:
            raise EngineProtocol("the engine's tokenizer archive came without its sha256")
        return await asyncio.to_thread(_join_checked, chunks, told.strip().lower())

    async def kv_events(self, after: int) -> AsyncIterator[KvBatch]:
        """Follows the engine's KV cache: batches after number `after`, 0 = all it still has, then new ones, for an hour at most.

        Raises Unimplemented when the engine has no such feed.
        """
        message = common_pb2.SubscribeKvEventsRequest(start_sequence_number=after)
        reader = AioReader(self._open("SubscribeKvEvents", message, timeout_s=SUBSCRIPTION_S), runtime=self.runtime)
        try:
            while (reply := await reader.read()) is not None:
                yield batch_of(reply)
        finally:
            reader.leave(whole=False)

    async def unary(self, method: str, request: Message) -> Reply:
        """Makes a unary call under `unary_timeout_s`."""
        call = self._open(method, request, timeout_s=self.options.unary_timeout_s)
        try:
            reply = await call
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise translated(error) from error
        if reply is None:  # grpcio logs a message that it cannot parse, and gives None for it
            raise EngineProtocol("the engine sent a message that is not of its protocol")
        return reply

    async def _ask(self, method: str, **fields: object) -> Reply:
        """Makes the unary call of this name with a request that holds these fields."""
        return await self.unary(method, GetMessageClass(self.service.methods_by_name[method].input_type)(**fields))

    def _method(self, channel: grpc.aio.Channel, method: MethodDescriptor) -> Callable[..., Any]:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        multicallable: Callable[..., Any] = make(
            self.path(method.name), request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        return multicallable

    def _open(self, method: str, request: Message, *, timeout_s: float) -> Any:
        if self._channel is None:
            raise EngineUnavailable("the connection to the engine is closed")
        return self._methods[method](request, timeout=min(timeout_s, LONGEST_TIMEOUT_S), metadata=self.call_metadata, wait_for_ready=False)

    def _made(self, make: Callable[[EngineRequest], Made], request: EngineRequest) -> Made:
        try:
            return make(request)
        except (ValueError, TypeError) as error:
            raise EngineRejected(f"a value of the request does not fit the {self.runtime} engine's protocol", detail=str(error)) from error

    async def _reader(self, request: EngineRequest, *, timeout_s: float) -> Reader:
        if self._link is None:
            return AioReader(self._open("Generate", self._made(self.encode, request), timeout_s=timeout_s))
        messages = Messages()
        call = await self.generate_into(messages.sink, request, timeout_s=timeout_s)
        messages.watch(call, timeout_s=timeout_s)
        return NativeReader(messages, GetMessageClass(self.service.methods_by_name["Generate"].output_type).FromString)


def _join_checked(chunks: list[bytes], told: str) -> bytes:
    data = b"".join(chunks)
    if hashlib.sha256(data).hexdigest() != told:
        raise EngineProtocol("the engine's tokenizer archive does not match its sha256")
    return data
