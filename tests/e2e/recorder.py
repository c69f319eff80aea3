"""A gRPC proxy before an engine that keeps what the gateway sent, so that tests see requests as they are on the wire."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from smg.pb import mlx_engine_pb2, sglang_scheduler_pb2, tokenspeed_scheduler_pb2, trtllm_service_pb2, vllm_engine_pb2

__all__ = ["Recorder", "recorder"]

REQUESTS: dict[str, Any] = {
    "vllm": vllm_engine_pb2.GenerateRequest,
    "sglang": sglang_scheduler_pb2.GenerateRequest,
    "trtllm": trtllm_service_pb2.GenerateRequest,
    "mlx": mlx_engine_pb2.GenerateRequest,
    "tokenspeed": tokenspeed_scheduler_pb2.GenerateRequest,
}


class Recorder(grpc.GenericRpcHandler):
    """Passes every call on as bytes. `url` is what a gateway connects to."""

    def __init__(self, protocol: str, channel: grpc.Channel) -> None:
        self.url = ""
        self._protocol = protocol
        self._channel = channel
        self._generated: list[bytes] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Handles any method."""
        method = handler_call_details.method
        call = self._channel.stream_stream(method)

        def forward(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            body = next(requests)
            if method.endswith("/Generate"):
                self._generated.append(body)
            try:
                yield from call(iter([body]))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())  # type: ignore[attr-defined]

        return grpc.stream_stream_rpc_method_handler(forward)

    def taken(self) -> list[dict[str, Any]]:
        """Gives the Generate requests since the last call of this, as dictionaries of the fields that were set."""
        bodies, self._generated = self._generated, []
        kind = REQUESTS[self._protocol]
        return [MessageToDict(kind.FromString(body), preserving_proto_field_name=True) for body in bodies]


@contextlib.contextmanager
def recorder(protocol: str, engine_url: str) -> Iterator[Recorder]:
    """A recorder before one engine."""
    with grpc.insecure_channel(engine_url.removeprefix("grpc://")) as channel:
        handler = Recorder(protocol, channel)
        server = grpc.server(ThreadPoolExecutor(8), handlers=(handler,), options=(("grpc.so_reuseport", 0),))
        handler.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield handler
        finally:
            server.stop(None).wait(5)
