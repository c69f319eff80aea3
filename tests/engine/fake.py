"""A gRPC server that says word for word what it is told, for streams that the simulator would never send."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
from google.protobuf.message import Message

HOLD = object()  # keep the call open until the client leaves
Step = Message | bytes | grpc.StatusCode | tuple[grpc.StatusCode, str] | object


class Fake:
    """`requests`: (method path, body) of each call; `metadata`: that of the last; `cancelled`: calls that ended by the client's leaving."""

    def __init__(self, answers: dict[str, Sequence[Step]]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, bytes]] = []
        self.metadata: dict[str, str] = {}
        self.cancelled = 0
        self.url = ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Finds what a method answers; None, which is UNIMPLEMENTED, where nothing is told. All methods are served as streams."""
        path = details.method
        steps = self.answers.get(path.rpartition("/")[2])
        if steps is None:
            return None

        async def answer(body: bytes, context: grpc.aio.ServicerContext) -> None:
            self.requests.append((path, body))
            self.metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
            try:
                for step in steps:
                    await self._do(step, context)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        return grpc.unary_stream_rpc_method_handler(answer)

    @staticmethod
    async def _do(step: Step, context: grpc.aio.ServicerContext) -> None:
        if step is HOLD:
            await asyncio.Event().wait()
        elif isinstance(step, grpc.StatusCode):
            await context.abort(step, "scripted")
        elif isinstance(step, tuple):
            await context.abort(*step)
        else:
            await context.write(step.SerializeToString() if isinstance(step, Message) else step)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self.fake.service(handler_call_details)


@asynccontextmanager
async def serve(
    answers: dict[str, Sequence[Step]], *, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[Fake]:
    """A server on loopback (or on `unix:PATH`) that answers each named method with its steps, then OK."""
    fake = Fake(answers)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)))
    server.add_generic_rpc_handlers((_Handler(fake),))
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    fake.url = address if address.startswith("unix:") else f"{'grpcs' if credentials else 'grpc'}://localhost:{port}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(None)
