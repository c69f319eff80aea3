"""Readers of a streaming call, one for each data plane: started calls in, protobuf messages out, one by one. Used by `smg.engine.grpc`.

`read` gives the next message and None at a good end, and raises the `EngineError` family. `leave` ends the call in any state; a whole
answer gets a moment to end well, since some engines log or count a late cancel as an abort.
"""

import asyncio
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from smg._ext import Call
from smg.engine.native import Messages
from smg.engine.status import error_of_status
from smg.errors import EngineProtocol, Unimplemented

__all__ = ["AioReader", "NativeReader", "Reader", "leave_call", "translated"]

StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[Message, Message]"
Reply: TypeAlias = Any  # a protobuf message of the driver's own protocol

LINGER_S = 1.0
MALFORMED = "the engine sent a message that is not of its protocol"


class Reader(Protocol):
    """One streaming call."""

    async def read(self) -> Reply:
        """Gives the next message."""

    def leave(self, *, whole: bool) -> None:
        """Ends the call."""


class AioReader:
    """A call of grpc.aio. With `runtime`, a call that the engine does not know raises Unimplemented, naming it."""

    def __init__(self, call: StreamCall, *, runtime: str | None = None) -> None:
        self._call = call
        self._runtime = runtime

    async def read(self) -> Reply:
        """Gives the next message."""
        try:
            reply = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise translated(error, runtime=self._runtime) from error
        if reply is None:  # grpcio logs a message that it cannot parse, and gives None for it
            raise EngineProtocol(MALFORMED)
        return reply if isinstance(reply, Message) else None

    def leave(self, *, whole: bool) -> None:
        """Ends the call."""
        if whole and not self._call.done():
            asyncio.get_running_loop().call_later(LINGER_S, self._call.cancel)
        else:
            self._call.cancel()


class NativeReader:
    """A call of the native plane; `parse` makes a message of its bytes."""

    def __init__(self, messages: Messages, parse: Any) -> None:
        self._messages = messages
        self._parse = parse

    async def read(self) -> Reply:
        """Gives the next message."""
        data = await self._messages.read()
        if data is None:
            return None
        try:
            return self._parse(data)
        except DecodeError as error:
            raise EngineProtocol(MALFORMED) from error

    def leave(self, *, whole: bool) -> None:
        """Ends the call."""
        leave_call(self._messages, whole=whole and not self._messages.ended)


def leave_call(call: Call | Messages, *, whole: bool) -> None:
    """Cancels a native call; one whose answer is whole gets its moment first, one to two seconds."""
    if whole:
        call.linger()
    else:
        call.cancel()


def translated(error: grpc.aio.AioRpcError | asyncio.CancelledError, *, runtime: str | None = None) -> BaseException:
    """Gives what to raise. grpc.aio raises CancelledError also when the engine or `close` cancelled the call: only our own task's is one.

    With `runtime`, a call that the engine does not know is Unimplemented.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return error
        return error_of_status(grpc.StatusCode.CANCELLED, None)
    if runtime is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Unimplemented(f"the {runtime} engine does not offer this", detail=error.details())
    return error_of_status(error.code(), error.details())
