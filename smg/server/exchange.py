"""One request and its response, from the first header to the last byte. Made by `smg.server.app`, one a request.

Everything runs in the request's own task: a client that leaves, or a deadline that passes, cancels that task, which closes the handler and
whatever it had open. All that depends on time hangs on one timer; most short requests do not live to see its first tick, which is why that
one is shared by all.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from smg.api.base import Reply, Request, StreamReply
from smg.api.errors import error_reply, internal_error, stream_error
from smg.api.routes import Route
from smg.api.sse import KEEP_ALIVE
from smg.errors import ClientGone, EngineError, EngineTimeout, InvalidValue, Preempted, SmgError
from smg.middleware import Gate, Permit, choose_request_id, read_body
from smg.server.front import Responder
from smg.server.transport import Outlet, cut_unfinished, send_reply

if TYPE_CHECKING:
    from smg.server.app import App

__all__ = ["Exchange"]

log = logging.getLogger(__name__)

# Most requests that can be short are over by then, and are spared the watch: so who only shuts its sending side still gets its answer.
WATCH_AFTER_S = 0.02
# A stream's head is held back for this long at most, so that an early error can still have its own status.
HEAD_AFTER_S = 1.0
# Timers may be early by a hair; the next look is never at once.
MIN_WAIT_S = 0.001


class Exchange:
    """`status` and `template` are for the observer: what was told to the client, and the path of the route."""

    # What most requests leave as it is costs nothing to make here.
    template = "unmatched"
    status = 500
    _surface = "openai"
    _form = False
    _first_look = 0
    _task: "asyncio.Task[None] | None" = None
    _timer: asyncio.TimerHandle | None = None
    _watcher: "asyncio.Future[None] | None" = None
    _cancelled_by: SmgError | None = None
    _outlet: Outlet | None = None
    _permit: Permit | None = None
    _comments = _seen = 0
    _quiet_since_s = _looked_s = 0.0

    def __init__(self, app: "App", scope: Any, protocol: Any) -> None:
        config = app.services.config.server
        self.method: str = scope.method
        self._app = app
        self._scope = scope
        self._protocol = protocol
        self._config = config
        self._received_s = time.monotonic()
        self._request_id, self._own_id = choose_request_id(scope.headers, config.request_id_headers, prefix="req-")
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Answers the request, whatever happens."""
        self._task = asyncio.current_task(self._loop)
        self._first_look = self._app.looks.add(self, self._received_s + min(WATCH_AFTER_S, self._config.request_timeout_s))
        self._app.enter()
        if isinstance(self._protocol, Responder):
            self._protocol.on_leave = self._client_left
            if self._protocol.left:
                self._client_left()
        try:
            try:
                reply = await self._answer()
            except (Exception, asyncio.CancelledError) as error:
                reply = error_reply(self._told(error), surface=self._surface)
            if isinstance(reply, StreamReply):
                await self._send_stream(reply)
            else:
                self._send(reply)
        finally:
            self._app.looks.discard(self, self._first_look)
            if self._timer is not None:
                self._timer.cancel()
            if self._permit is not None:
                self._permit.close()
            if self._watcher is not None:
                self._watcher.cancel()
            cut_unfinished(self._protocol)
            # An error's traceback can keep this object alive for a while, and the body's socket with it.
            self._protocol = self._task = self._outlet = None
            self._app.leave(self.method, self.template, self.status, time.monotonic() - self._received_s)

    def _answer(self) -> Awaitable[Reply | StreamReply]:
        path: str = self._scope.path
        if self.method == "OPTIONS":
            return self._options(path)
        headers = self._scope.headers
        route, params = self._app.routes.find(self.method, path)
        self.template, self._surface, self._form = route.path, route.surface, route.form
        if self._own_id:
            self._request_id = route.id_prefix + self._request_id.removeprefix("req-")
        authorized = "" if route.public else self._app.keys.check(headers, managing=route.managing)
        http = Request(
            method=self.method,
            path=path,
            headers=headers,
            request_id=self._request_id,
            received_s=self._received_s,
            read=self._body,
            query=self._scope.query_string,
            client=self._scope.client,
            params=params,
            own_id=self._own_id,
        )
        if self._app.gate is not None and self._app.gate.counts(http):
            return self._admitted(self._app.gate, route, http, authorized)
        return route.handler(http, self._app.services)

    async def _admitted(self, gate: Gate, route: Route, http: Request, authorized: str) -> Reply | StreamReply:
        self._permit = await gate.admit(http, authorized=authorized, holder=self)
        return await route.handler(http, self._app.services)

    def answered(self) -> bool:
        """True once the client has a byte of the answer; comments that fill silence are none."""
        stream = self._outlet.stream if self._outlet is not None else None
        return stream is not None and stream.count > self._comments

    def give_way(self) -> None:
        """Ends the request for one of a higher class, before it has answered anything."""
        self._leave(Preempted("a request of a higher class has taken the place of this one", retry_after_s=1))

    async def _options(self, path: str) -> Reply:
        methods = ", ".join(self._app.routes.methods(path))
        return Reply(status=204, headers=(("allow", methods), *self._app.cors.preflight(self._scope.headers, methods=methods)))

    def _body(self) -> Awaitable[bytes]:
        return read_body(self._protocol, self._scope.headers, limit=self._config.max_payload_bytes, form=self._form)

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
        outlet = self._outlet = Outlet(self._protocol, reply=reply, headers=self._headers)
        self._quiet_since_s = self._looked_s = self._loop.time()
        if self._timer is not None:  # else the first look is still to come
            self._timer.cancel()
            self.expire()
        try:
            outlet.finish(await reply.pump(outlet))
            self.status = outlet.status
        except (Exception, asyncio.CancelledError) as error:
            self._fail(self._told(error), outlet)
        finally:
            outlet.close()

    def expire(self) -> None:
        """The one timer of a request: watches for the client's leaving, ends the request at its deadline, fills the silence of a stream."""
        now = self._loop.time()
        if self._watcher is None and not isinstance(self._protocol, Responder):  # which tells it by itself
            self._watcher = asyncio.ensure_future(self._protocol.client_disconnect())
            self._watcher.add_done_callback(self._watched)
        wait = self._received_s + self._config.request_timeout_s - time.monotonic()
        if wait <= 0:
            self._leave(EngineTimeout("the request took too long"))
            return
        if self._outlet is not None:
            wait = min(wait, self._beat(self._outlet, now))
        self._timer = self._loop.call_later(wait, self.expire)

    def _beat(self, outlet: Outlet, now: float) -> float:
        """Fills the silence of a stream: the head after a moment, later a comment. Gives the seconds until the next look.

        It looks twice an interval at the number of chunks, so that writing one costs nothing here: the silence that is filled is between
        half an interval and a whole one.
        """
        interval = self._config.keepalive_interval_s
        if not outlet.comments:
            return interval
        if outlet.stream is not None and outlet.stream.count != self._seen:
            self._seen, self._quiet_since_s = outlet.stream.count, self._looked_s
        self._looked_s = now
        allowed = interval if outlet.stream is not None else min(HEAD_AFTER_S, interval)
        if now - self._quiet_since_s >= allowed:
            outlet(KEEP_ALIVE)
            self._comments += 1
            self._seen, self._quiet_since_s = self._seen + 1, now
        return min(interval / 2, max(self._quiet_since_s + allowed - now, MIN_WAIT_S))

    def _fail(self, error: SmgError, outlet: Outlet) -> None:
        if outlet.stream is None:
            self._send(error_reply(error, surface=self._surface))
        else:
            self.status = error.status
            # Who shut only its sending side would take a clean end for that of the answer; a body of another kind has no place for errors.
            if not outlet.comments or not outlet(stream_error(error, surface=self._surface)):
                cut_unfinished(self._protocol)

    def _watched(self, watcher: "asyncio.Future[None]") -> None:
        if not watcher.cancelled():
            self._client_left()

    def _client_left(self) -> None:
        reason, wait = ClientGone("the client left"), self._received_s + WATCH_AFTER_S - time.monotonic()
        if wait > 0:
            self._loop.call_later(wait, self._leave, reason)
        else:
            self._leave(reason)

    def _leave(self, reason: SmgError) -> None:
        if self._cancelled_by is None and self._task is not None:
            self._cancelled_by = reason
            self._task.cancel()

    def _log(self, error: SmgError) -> None:
        """Keeps what the client is not told: which engine it was, and what that or the machine said."""
        fields = {"request_id": self._request_id, "path": self.template, "code": error.code}
        if isinstance(error, EngineError) and error.engine:
            fields["engine"] = error.engine
        fields["cause"] = error.detail or repr(error.__cause__)
        log.warning("request failed: %s", error.message, extra=fields)

    def _told(self, error: BaseException) -> SmgError:
        """Gives what the client is told of an error. Raises it again when the task was cancelled by somebody else."""
        if isinstance(error, SmgError):
            if error.status >= 500 and (error.__cause__ is not None or error.detail):
                self._log(error)
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
