"""One request and its response, from the first header to the last byte. Made by `smg.server.app`, one a request.

Everything runs in the request's own task: a client that leaves, or a deadline that passes, cancels that task, which closes the handler and
whatever it had open. Silence is filled from timer callbacks, so that no further task is needed for it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from smg.api.base import Reply, Request, StreamReply
from smg.api.errors import error_reply, internal_error, stream_error
from smg.api.routes import Route
from smg.api.sse import KEEP_ALIVE
from smg.errors import ClientGone, EngineTimeout, InvalidValue, SmgError
from smg.middleware import choose_request_id, read_body
from smg.server.transport import Stream, open_stream, send_reply

if TYPE_CHECKING:
    from smg.server.app import App

__all__ = ["Exchange"]

log = logging.getLogger(__name__)

# Most requests that can be short are over by then, and are spared a second task.
WATCH_AFTER_S = 0.02
# A stream's head is held back for this long at most, so that an early error can still have its own status.
HEAD_AFTER_S = 1.0


class Exchange:
    """`status` and `template` are for the observer: what was told to the client, and the path of the route."""

    def __init__(self, app: "App", scope: Any, protocol: Any, *, received_s: float) -> None:
        self.method: str = scope.method
        self.template = "unmatched"
        self.status = 500
        self._app = app
        self._scope = scope
        self._protocol = protocol
        self._received_s = received_s
        self._config = app.services.config.server
        self._surface = "openai"
        self._request_id, self._own_id = choose_request_id(scope.headers, self._config.request_id_headers, prefix="req-")
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._cancelled_by: SmgError | None = None
        self._stream: Stream | None = None
        self._written_s = 0.0

    async def run(self) -> None:
        """Answers the request, whatever happens."""
        watch = self._loop.call_later(WATCH_AFTER_S, self._watch)
        expiry = self._loop.call_later(self._config.request_timeout_s, self._leave, EngineTimeout("the request took too long"))
        try:
            reply = await self._guarded()
            if isinstance(reply, StreamReply):
                await self._send_stream(reply)
            else:
                self._send(reply)
        finally:
            watch.cancel()
            expiry.cancel()
            if self._watcher:
                self._watcher.cancel()
            # An error's traceback can keep this object alive for a while, and the body's socket with it.
            self._protocol = self._task = None

    async def _guarded(self) -> Reply | StreamReply:
        try:
            return await self._answer()
        except (Exception, asyncio.CancelledError) as error:
            return error_reply(self._told(error), surface=self._surface)

    async def _answer(self) -> Reply | StreamReply:
        path: str = self._scope.path
        if self.method == "OPTIONS":
            return self._options(path)
        route, params = self._app.routes.find(self.method, path)
        self._enter(route)
        if not route.public:
            self._app.keys.check(self._scope.headers)
        http = Request(
            method=self.method,
            path=path,
            headers=self._scope.headers,
            request_id=self._request_id,
            received_s=self._received_s,
            read=self._body,
            query=self._scope.query_string,
            client=self._scope.client,
            params=params,
            own_id=self._own_id,
        )
        return await route.handler(http, self._app.services)

    def _enter(self, route: Route) -> None:
        self.template = route.path
        self._surface = route.surface
        if self._own_id:
            self._request_id = route.id_prefix + self._request_id.removeprefix("req-")

    def _options(self, path: str) -> Reply:
        methods = ", ".join(self._app.routes.methods(path))
        return Reply(status=204, headers=(("allow", methods), *self._app.cors.preflight(self._scope.headers, methods=methods)))

    async def _body(self) -> bytes:
        return await read_body(self._protocol, self._scope.headers, limit=self._config.max_payload_bytes)

    def _headers(self, headers: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        return [*headers, ("x-request-id", self._request_id), *self._app.cors.headers(self._scope.headers)]

    def _send(self, reply: Reply) -> None:
        self.status = reply.status
        headers = self._headers(reply.headers)
        if reply.status == 405:
            headers.append(("allow", ", ".join(self._app.routes.methods(self._scope.path))))
        send_reply(self._protocol, reply, headers=headers)

    async def _send_stream(self, reply: StreamReply) -> None:
        self.status = reply.status
        self._timer = self._loop.call_later(min(HEAD_AFTER_S, self._config.keepalive_interval_s), self._beat, reply)
        try:
            await reply.pump(lambda chunk: self._write(chunk, reply))
        except (Exception, asyncio.CancelledError) as error:
            self._fail(self._told(error))
        finally:
            self._timer.cancel()
            if self._stream:
                self._stream.close()

    def _write(self, chunk: bytes, reply: StreamReply) -> bool:
        if self._stream is None:
            self._stream = open_stream(self._protocol, status=reply.status, headers=self._headers(reply.headers))
        self._written_s = self._loop.time()
        return self._stream.write(chunk)

    def _beat(self, reply: StreamReply) -> None:
        """Fills silence: sends the head if nothing was sent yet, else a comment when the last write is an interval ago."""
        interval = self._config.keepalive_interval_s
        quiet = self._loop.time() - self._written_s
        if self._stream is None or quiet >= interval:
            self._write(KEEP_ALIVE, reply)
            quiet = 0.0
        self._timer = self._loop.call_later(interval - quiet, self._beat, reply)

    def _fail(self, error: SmgError) -> None:
        if self._stream is None:
            self._send(error_reply(error, surface=self._surface))
        else:
            self.status = error.status
            self._stream.write(stream_error(error, surface=self._surface))

    def _watch(self) -> None:
        self._watcher = self._loop.create_task(self._wait_for_client())

    async def _wait_for_client(self) -> None:
        await self._protocol.client_disconnect()
        self._leave(ClientGone("the client left"))

    def _leave(self, reason: SmgError) -> None:
        if self._cancelled_by is None and self._task is not None:
            self._cancelled_by = reason
            self._task.cancel()

    def _told(self, error: BaseException) -> SmgError:
        """Gives what the client is told of an error. Raises it again when the task was cancelled by somebody else."""
        if isinstance(error, SmgError):
            if error.status >= 500 and error.__cause__ is not None:
                fields = {"request_id": self._request_id, "path": self.template, "code": error.code, "cause": repr(error.__cause__)}
                log.warning("request failed: %s", error.message, extra=fields)
            return error
        if isinstance(error, asyncio.CancelledError):
            if self._cancelled_by is None or self._task is None:
                raise error
            self._task.uncancel()
            return self._cancelled_by
        if isinstance(error, RecursionError):
            return InvalidValue("the body is nested too deeply")
        log.error("request failed", exc_info=error, extra={"request_id": self._request_id, "path": self.template})
        return internal_error()
