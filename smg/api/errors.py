"""How errors look on the wire: one table for status and type, one renderer a dialect. Called by the application only.

Every `code` of smg.errors has a line in `TABLE` (a test compares them). Shapes by dialect:
  openai     {"error": {"message", "type", "param", "code"}}; in mid-stream the same object as an event, then `[DONE]`.
  responses  the same; in mid-stream the event `error` of the Responses API.
  anthropic  {"type": "error", "error": {"type", "message"}}; in mid-stream the same object as the event `error`.
Every error reply has the header `x-smg-error-code`, and Retry-After where the error knows when to try again.
"""

from abc import ABC, abstractmethod

import msgspec
from msgspec import Struct

from smg.api.base import JSON, Reply
from smg.api.sse import DONE, event
from smg.errors import SmgError
from smg.registry import Registry

__all__ = ["DIALECTS", "TABLE", "Dialect", "ErrorKind", "error_reply", "internal_error", "stream_error"]


class ErrorKind(Struct, frozen=True):
    """A line of the table: HTTP status, and `type` as OpenAI's clients know it."""

    status: int
    type: str


TABLE = {
    "invalid_request": ErrorKind(400, "invalid_request_error"),
    "invalid_json": ErrorKind(400, "invalid_request_error"),
    "invalid_value": ErrorKind(400, "invalid_request_error"),
    "unsupported_parameter": ErrorKind(400, "invalid_request_error"),
    "context_length_exceeded": ErrorKind(400, "invalid_request_error"),
    "template_refused": ErrorKind(400, "invalid_request_error"),
    "engine_rejected": ErrorKind(400, "invalid_request_error"),
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "forbidden": ErrorKind(403, "permission_error"),
    "not_found": ErrorKind(404, "invalid_request_error"),
    "model_not_found": ErrorKind(404, "invalid_request_error"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error"),
    "body_timeout": ErrorKind(408, "invalid_request_error"),
    "scheduler_queue_timeout": ErrorKind(408, "timeout_error"),
    "conflict": ErrorKind(409, "invalid_request_error"),
    "body_too_large": ErrorKind(413, "invalid_request_error"),
    "unsupported_media_type": ErrorKind(415, "invalid_request_error"),
    "rate_limited": ErrorKind(429, "rate_limit_error"),
    "scheduler_queue_full": ErrorKind(429, "rate_limit_error"),
    "tenant_rate_limit_exceeded": ErrorKind(429, "rate_limit_error"),
    "engine_busy": ErrorKind(429, "rate_limit_error"),
    "client_gone": ErrorKind(499, "client_error"),
    "internal_error": ErrorKind(500, "server_error"),
    "not_implemented": ErrorKind(501, "not_implemented_error"),
    "engine_error": ErrorKind(502, "server_error"),
    "engine_protocol": ErrorKind(502, "server_error"),
    "output_invalid": ErrorKind(502, "server_error"),
    "engine_unavailable": ErrorKind(503, "service_unavailable_error"),
    "no_engine": ErrorKind(503, "service_unavailable_error"),
    "scheduler_preempted": ErrorKind(503, "service_unavailable_error"),
    "limits_unavailable": ErrorKind(503, "service_unavailable_error"),
    "draining": ErrorKind(503, "service_unavailable_error"),
    "control_unavailable": ErrorKind(503, "service_unavailable_error"),
    "engine_timeout": ErrorKind(504, "timeout_error"),
    "loop_detected": ErrorKind(508, "server_error"),
}

UNKNOWN = TABLE["internal_error"]


class Dialect(ABC):
    """How one surface tells an error."""

    @abstractmethod
    def body(self, error: SmgError) -> bytes:
        """Gives the body of an error reply."""

    @abstractmethod
    def stream(self, error: SmgError) -> bytes:
        """Gives the events that end a stream which failed: never those of a clean end."""


DIALECTS: Registry[Dialect] = Registry("error dialect")


class OpenAIDialect(Dialect):
    """`{"error": {...}}`, as the OpenAI SDKs parse it in both places."""

    def body(self, error: SmgError) -> bytes:
        kind = TABLE.get(error.code, UNKNOWN)
        return msgspec.json.encode({"error": {"message": error.message, "type": kind.type, "param": error.param, "code": error.code}})

    def stream(self, error: SmgError) -> bytes:
        return event(self.body(error)) + DONE


class ResponsesDialect(OpenAIDialect):
    """`event: error` with the fields that the Responses API gives it."""

    def stream(self, error: SmgError) -> bytes:
        fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}
        return b"event: error\n" + event(msgspec.json.encode(fields))


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicDialect(Dialect):
    """As Anthropic's SDKs parse it; the stable code is in the header, for their shape has no place for it."""

    def body(self, error: SmgError) -> bytes:
        status = TABLE.get(error.code, UNKNOWN).status
        kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def stream(self, error: SmgError) -> bytes:
        return b"event: error\n" + event(self.body(error))


DIALECTS.register("openai")(OpenAIDialect())
DIALECTS.register("responses")(ResponsesDialect())
DIALECTS.register("anthropic")(AnthropicDialect())


def error_reply(error: SmgError, *, surface: str) -> Reply:
    """Gives the whole response for an error that is known before anything was sent."""
    headers = [*JSON, ("x-smg-error-code", error.code)]
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(error.retry_after_s)))
    if error.code == "scheduler_preempted":
        headers.append(("x-smg-preempted", "true"))
    if error.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    return Reply(status=TABLE.get(error.code, UNKNOWN).status, headers=tuple(headers), body=DIALECTS.get(surface).body(error))


def stream_error(error: SmgError, *, surface: str) -> bytes:
    """Gives the closing events for an error after the head was sent."""
    return DIALECTS.get(surface).stream(error)


def internal_error() -> SmgError:
    """What a client is told of a fault of ours: nothing but that it happened."""
    return SmgError("the gateway failed on this request; its log has the details under the request's id")
