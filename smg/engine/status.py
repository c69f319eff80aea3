"""gRPC statuses in, errors of `smg.errors` out. Called by `smg.engine.grpc` for every call that did not end well.

Follows the original gateway's table, but for four rows where the client would be told something wrong: an engine that turns the gateway's
own credentials away (502, not 401), one that drops a request by itself (503, not 400), a method that it lacks (502) and a
message over the size limit (400, although gRPC calls it RESOURCE_EXHAUSTED like a full queue).
"""

import re

from grpc import StatusCode

from smg.errors import EngineBusy, EngineError, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable

__all__ = ["error_of_call", "error_of_status", "status_of"]

REJECTED = {
    StatusCode.INVALID_ARGUMENT,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.OUT_OF_RANGE,
    StatusCode.NOT_FOUND,
    StatusCode.ALREADY_EXISTS,
}
FAULTS: dict[StatusCode, tuple[type[EngineError], str]] = {
    StatusCode.RESOURCE_EXHAUSTED: (EngineBusy, "the engine has no room for the request"),
    StatusCode.UNAVAILABLE: (EngineUnavailable, "the engine cannot be reached, or it went away"),
    StatusCode.CANCELLED: (EngineUnavailable, "the engine dropped the request"),
    StatusCode.ABORTED: (EngineUnavailable, "the engine dropped the request"),
    StatusCode.DEADLINE_EXCEEDED: (EngineTimeout, "the engine did not answer in time"),
    StatusCode.UNIMPLEMENTED: (EngineProtocol, "the engine does not offer this call"),
    StatusCode.UNAUTHENTICATED: (EngineError, "the engine does not accept the gateway's credentials"),
    StatusCode.PERMISSION_DENIED: (EngineError, "the engine does not accept the gateway's credentials"),
}
LONGEST_QUOTE = 300
# What must not reach a client: URLs, addresses, ports, paths, tracebacks, the transport's own words.
PRIVATE = re.compile(
    r"://|ipv[46]:|unix:|\d+\.\d+\.\d+\.\d+|\]:\d|\w:\d{2,5}\b|(^|[\s'\"(=])/\w"
    r"|Traceback|File \"|RST_STREAM|GOAWAY|http/?2|socket",
    re.IGNORECASE,
)


BY_NUMBER = {code.value[0]: code for code in StatusCode}


def status_of(number: int) -> StatusCode:
    """Gives the status of its number on the wire; one that gRPC does not know is UNKNOWN."""
    return BY_NUMBER.get(number, StatusCode.UNKNOWN)


def error_of_call(number: int, text: str) -> EngineError:
    """Gives the error of a native call that ended with a gRPC status other than OK."""
    return error_of_status(status_of(number), text)


def error_of_status(code: StatusCode, details: str | None) -> EngineError:
    """Gives the error to raise. `details` goes to the logs; a client sees it only where it explains a refusal and names nothing private."""
    text = details or ""
    detail = f"{code.name}: {text}"
    if code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return EngineRejected("the request, or the engine's answer, is larger than a message may be", detail=detail)
    if code in REJECTED:
        quote = " ".join(text.split())[:LONGEST_QUOTE]
        shown = f": {quote}" if quote and not PRIVATE.search(text[: 4 * LONGEST_QUOTE]) else ""
        return EngineRejected(f"the engine refused the request{shown}", detail=detail)
    kind, message = FAULTS.get(code, (EngineError, "the engine failed while working on the request"))
    return kind(message, detail=detail)
