"""Calls from data workers to the control process, over its UNIX socket: a 4-byte length, then a msgpack message, either way."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from smg.errors import Conflict, ControlUnavailable, EngineError, InvalidValue, NotFound, SmgError

__all__ = ["AdminCall", "AdminReply", "AdminServer", "call"]

LONGEST = 16 * 1024 * 1024
IDLE_S = 60.0
CALL_S = 5.0
RETRY_S = 1
REFUSALS: dict[str, type[SmgError]] = {kind.code: kind for kind in (NotFound, Conflict, InvalidValue)}


class AdminCall(Struct, frozen=True, kw_only=True):
    """What is asked."""

    method: str
    data: msgspec.Raw = msgspec.Raw(b"\xc0")


class AdminReply(Struct, frozen=True, kw_only=True):
    """What is answered; `error` is empty when it went well, else the message of an error with that `code`."""

    data: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: str = ""


CALLS = msgspec.msgpack.Decoder(AdminCall)
REPLIES = msgspec.msgpack.Decoder(AdminReply)


class AdminServer:
    """Answers by `methods`: name -> function from the call's data to what is sent back."""

    def __init__(self, methods: Mapping[str, Callable[[msgspec.Raw], object]]) -> None:
        self._methods = methods
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serves on a listening UNIX socket."""
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    message = await _receive(reader)
                    _send(writer, self._reply(message))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, msgspec.ValidationError, msgspec.DecodeError):
            pass
        finally:
            writer.close()

    def _reply(self, message: bytes) -> AdminReply:
        call = CALLS.decode(message)
        method = self._methods.get(call.method)
        if method is None:
            return AdminReply(error=f"no method {call.method!r}")
        try:
            answer = method(call.data)
        except SmgError as error:
            return AdminReply(error=error.message, code=error.code)
        except msgspec.ValidationError as error:
            return AdminReply(error=f"the call has wrong data: {error}")
        return AdminReply(data=msgspec.Raw(msgspec.msgpack.encode(answer)))


async def _receive(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > LONGEST:
        raise msgspec.DecodeError("the message is too long")
    return await reader.readexactly(size)


def _send(writer: asyncio.StreamWriter, message: AdminCall | AdminReply) -> None:
    data = msgspec.msgpack.encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)


async def call(path: Path, method: str, data: object = None, *, timeout_s: float = CALL_S) -> msgspec.Raw:
    """Asks the control process; gives its answer, to be decoded as msgpack. Raises ControlUnavailable when it does not answer.

    Where it refuses: NotFound, Conflict or InvalidValue if it raised that, else EngineError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(path))
            with contextlib.closing(writer):
                _send(writer, AdminCall(method=method, data=msgspec.Raw(msgspec.msgpack.encode(data))))
                await writer.drain()
                reply = REPLIES.decode(await _receive(reader))
    except (TimeoutError, OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
        raise ControlUnavailable("the control process does not answer", retry_after_s=RETRY_S, detail=str(error)) from error
    if reply.error:
        raise REFUSALS.get(reply.code, EngineError)(reply.error)
    return reply.data
