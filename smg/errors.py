"""Every error that SMG raises on purpose. Raised where the fault is known, rendered once per surface in `smg/api/errors.py`.

SmgError                        500 internal_error
├─ ConfigError                  (never on the wire: the command line prints it and exits with 2)
├─ RequestError                 400 invalid_request      the client can mend it
│   ├─ InvalidJson              400 invalid_json
│   ├─ InvalidValue             400 invalid_value
│   ├─ UnsupportedParameter     400 unsupported_parameter
│   ├─ ContextExceeded          400 context_length_exceeded
│   ├─ TemplateRefused          400 template_refused
│   ├─ Unauthorized             401 invalid_api_key
│   ├─ Forbidden                403 forbidden
│   ├─ NotFound                 404 not_found
│   │   └─ ModelNotFound        404 model_not_found
│   ├─ MethodNotAllowed         405 method_not_allowed
│   ├─ BodyTimeout              408 body_timeout
│   ├─ QueueTimeout             408 scheduler_queue_timeout
│   ├─ Conflict                 409 conflict
│   ├─ BodyTooLarge             413 body_too_large
│   ├─ UnsupportedMedia         415 unsupported_media_type
│   ├─ RateLimited              429 rate_limited
│   │   ├─ QueueFull            429 scheduler_queue_full
│   │   └─ TenantLimited        429 tenant_rate_limit_exceeded
│   └─ ClientGone               499 client_gone          nobody is left to read it; for logs and counters
├─ EngineError                  502 engine_error         the engine failed
│   ├─ EngineRejected           400 engine_rejected      the engine called the request wrong
│   ├─ EngineBusy               429 engine_busy
│   ├─ EngineUnavailable        503 engine_unavailable   not reachable, or it went away
│   ├─ EngineTimeout            504 engine_timeout
│   ├─ EngineProtocol           502 engine_protocol      it broke its own protocol
│   └─ LoopDetected             508 loop_detected        it is a gateway that the request has passed before
├─ OutputInvalid                502 output_invalid       the output does not fit the schema that the client wants checked
├─ NoEngine                     503 no_engine            no engine is ready for that model
├─ Preempted                    503 scheduler_preempted  a request of a higher class has its place
├─ LimitsUnavailable            503 limits_unavailable   the server of shared limits does not answer, and nothing passes without it
├─ Draining                     503 draining
├─ ControlUnavailable           503 control_unavailable  the control process does not answer now
└─ Unimplemented                501 not_implemented
"""

__all__ = [
    "BodyTimeout",
    "BodyTooLarge",
    "ClientGone",
    "ConfigError",
    "Conflict",
    "ContextExceeded",
    "ControlUnavailable",
    "Draining",
    "EngineBusy",
    "EngineError",
    "EngineProtocol",
    "EngineRejected",
    "EngineTimeout",
    "EngineUnavailable",
    "Forbidden",
    "InvalidJson",
    "InvalidValue",
    "LimitsUnavailable",
    "LoopDetected",
    "MethodNotAllowed",
    "ModelNotFound",
    "NoEngine",
    "NotFound",
    "OutputInvalid",
    "Preempted",
    "QueueFull",
    "QueueTimeout",
    "RateLimited",
    "RequestError",
    "SmgError",
    "TemplateRefused",
    "TenantLimited",
    "Unauthorized",
    "Unimplemented",
    "UnsupportedMedia",
    "UnsupportedParameter",
]


class SmgError(Exception):
    """Base of all. `message` is meant for the client: it names no path, address or Python type.

    `param` names the offending request field (dotted, as in the body); `retry_after_s` becomes the Retry-After header. `detail` is what the
    other side said in its own words (addresses and all): for logs, never for a client.
    """

    status = 500
    code = "internal_error"
    retryable = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.detail = detail


class ConfigError(SmgError):
    """The configuration is wrong; `mistakes` holds every one found, each with its path."""

    code = "config"

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class RequestError(SmgError):
    """The request is at fault."""

    status = 400
    code = "invalid_request"


class InvalidJson(RequestError):
    """The body is not JSON, or not UTF-8."""

    code = "invalid_json"


class InvalidValue(RequestError):
    """A field has the wrong type or lies outside its range."""

    code = "invalid_value"


class UnsupportedParameter(RequestError):
    """The engine that serves the model has no such parameter; the message names both."""

    code = "unsupported_parameter"


class ContextExceeded(RequestError):
    """Prompt, or prompt plus max_tokens, is longer than the model's context."""

    code = "context_length_exceeded"


class TemplateRefused(RequestError):
    """The chat template raised; the message is the template's own text."""

    code = "template_refused"


class Unauthorized(RequestError):
    """No key, or one that is not known."""

    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is known and may not do this."""

    status = 403
    code = "forbidden"


class NotFound(RequestError):
    """No such path or object."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No engine has that model, ready or not."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """The path exists under another method."""

    status = 405
    code = "method_not_allowed"


class BodyTimeout(RequestError):
    """The client stopped sending in the middle of its body."""

    status = 408
    code = "body_timeout"


class QueueTimeout(RequestError):
    """The request waited in the admission queue up to its deadline."""

    status = 408
    code = "scheduler_queue_timeout"
    retryable = True


class Conflict(RequestError):
    """What is to be made is there already."""

    status = 409
    code = "conflict"


class BodyTooLarge(RequestError):
    """The body is longer than the limit; found before it is buffered."""

    status = 413
    code = "body_too_large"


class UnsupportedMedia(RequestError):
    """Content-Type or Content-Encoding is not one that this path takes."""

    status = 415
    code = "unsupported_media_type"


class RateLimited(RequestError):
    """A limit of the caller or of the gateway is used up."""

    status = 429
    code = "rate_limited"
    retryable = True


class QueueFull(RateLimited):
    """As many requests wait as may."""

    code = "scheduler_queue_full"


class TenantLimited(RateLimited):
    """The tenant has used what it may use in this minute."""

    code = "tenant_rate_limit_exceeded"


class ClientGone(RequestError):
    """The client closed its connection before the answer was whole."""

    status = 499
    code = "client_gone"


class EngineError(SmgError):
    """An engine failed in a way that has no better name. `engine` is its URL, once that is known: for logs, as `detail`."""

    status = 502
    code = "engine_error"
    engine = ""


class EngineRejected(EngineError):
    """The engine refused the request as wrong."""

    status = 400
    code = "engine_rejected"


class EngineBusy(EngineError):
    """The engine has no room for the request."""

    status = 429
    code = "engine_busy"
    retryable = True


class EngineUnavailable(EngineError):
    """The engine cannot be reached, or went away."""

    status = 503
    code = "engine_unavailable"
    retryable = True


class EngineTimeout(EngineError):
    """The engine did not answer before the deadline."""

    status = 504
    code = "engine_timeout"


class EngineProtocol(EngineError):
    """The engine's stream broke its own rules, such as an end without a closing message."""

    code = "engine_protocol"


class LoopDetected(EngineError):
    """The request has passed too many gateways: one of their engines is a gateway before it."""

    status = 508
    code = "loop_detected"


class OutputInvalid(SmgError):
    """The model's output does not fit its schema, and the client asked to be told (`x-smg-validate`)."""

    status = 502
    code = "output_invalid"


class NoEngine(SmgError):
    """Engines for the model are known, and none is ready."""

    status = 503
    code = "no_engine"
    retryable = True


class Preempted(SmgError):
    """The request gave way to one of a higher class, before it had answered anything."""

    status = 503
    code = "scheduler_preempted"
    retryable = True


class LimitsUnavailable(SmgError):
    """The server that keeps the limits does not answer, and the operator wants nothing to pass without it."""

    status = 503
    code = "limits_unavailable"
    retryable = True


class Draining(SmgError):
    """The gateway is shutting down and takes no new requests."""

    status = 503
    code = "draining"
    retryable = True


class ControlUnavailable(SmgError):
    """The process that keeps the engines does not answer; a new one is on its way."""

    status = 503
    code = "control_unavailable"
    retryable = True


class Unimplemented(SmgError):
    """The request asks for something that SMG does not do yet."""

    status = 501
    code = "not_implemented"
