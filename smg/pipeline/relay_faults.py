"""Whose fault an HTTP engine's answer is, by its status: the engine's and ours, which another engine may mend, or the request's, which is
for the client to read. Called by `relay.py` and `relay_pairs.py` before anything of an answer is passed on.
"""

from smg.engine import Head, HttpCall
from smg.errors import (
    EngineBusy,
    EngineError,
    EngineProtocol,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    LoopDetected,
    SmgError,
    Unimplemented,
)

__all__ = ["Busy", "Refused", "fault_of", "kept", "said"]

ERROR_BYTES = 65536
QUOTED = 300
RETRY_AFTER_S = 1  # of an engine that cannot serve now and does not say when
# Of an answer's headers: what describes its body, and when to try again. The others are about the connection, or the engine's own affair.
KEPT = frozenset({"content-type", "content-encoding", "content-language", "content-disposition", "cache-control", "retry-after"})


class Busy(EngineBusy):
    """An engine's own 429, which the client gets when no other engine has room either."""

    def __init__(self, head: Head, body: bytes) -> None:
        super().__init__("the engine has no room for the request")
        self.head = head
        self.body = body


class Refused(EngineRejected):
    """What the engine that computes the prompt says of the request: the client gets it as it is."""

    def __init__(self, head: Head, body: bytes) -> None:
        super().__init__("the engine refused the request", detail=quoted(head.status, body))
        self.head = head
        self.body = body


async def fault_of(call: HttpCall, head: Head, *, keyless: bool) -> SmgError | None:
    """Gives what is wrong with an answer that is the engine's fault, or ours; None for what the client is to see."""
    status = head.status
    if status == 429:
        if not head.get("retry-after"):
            head.headers.append(("retry-after", str(RETRY_AFTER_S)))
        return Busy(head, await call.read(ERROR_BYTES) or b"")
    if status < 300 or (400 <= status < 500 and (keyless or status not in (401, 403))):
        return None
    try:
        body = await call.read(ERROR_BYTES) or b""
    except EngineError:
        body = b""
    detail = quoted(status, body)
    if status < 400:
        return EngineProtocol("the engine sends the request elsewhere", detail=detail)
    if status < 500:
        return EngineError("the engine does not accept the gateway's credentials", detail=detail)
    if status == 501:
        return Unimplemented("the engine does not offer this", detail=detail)
    if status in (502, 503):
        wait = head.get("retry-after")
        retry_after_s = int(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else RETRY_AFTER_S
        return EngineUnavailable("the engine cannot serve now", retry_after_s=retry_after_s, detail=detail)
    if status == LoopDetected.status and head.get("x-smg-error-code") == LoopDetected.code:
        return LoopDetected("an engine of this gateway is a gateway whose engine it is in turn", detail=detail)
    if status == 504:
        return EngineTimeout("the engine did not answer in time", detail=detail)
    return EngineError("the engine failed while working on the request", detail=detail)


def said(status: int, body: bytes) -> SmgError:
    """Gives the error for an answer that came too late for its own status: the head of a stream has left."""
    if status < 400:
        return EngineProtocol("the engine does not answer with a stream")
    return EngineRejected("the engine refused the request", detail=quoted(status, body))


def kept(head: Head, *, but: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """Gives the headers that the client gets."""
    return tuple((name, value) for name, value in head.headers if name in KEPT and name not in but)


def quoted(status: int, body: bytes) -> str:
    """Gives an answer for the log."""
    return f"{status}: {body[:QUOTED].decode('utf-8', 'replace')}"
