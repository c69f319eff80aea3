"""Requests for models whose engines are asked over HTTP: found out once, by the body's `model`, and then passed on as they came.

`or_relayed` wraps the handler of a surface that the gateway speaks itself, `relayed` makes one for a path that only engines do. Where no
engine is asked over HTTP the first costs one look at the registry's generation.
"""

from collections.abc import Awaitable
from functools import partial

from msgspec import Struct

from smg.api.base import Handler, Reply, Request, Services, StreamReply
from smg.api.decode import parsed
from smg.api.openai.fields import deadline, routing
from smg.api.relayed_body import outline_of_form, outline_of_json, rename_in_form, rename_in_json
from smg.api.spliced_body import Asked, asked_in, spliced
from smg.errors import Forbidden, InvalidValue, LoopDetected, Unimplemented
from smg.pipeline import RelayRequest
from smg.types.job import Sampling

__all__ = ["Passage", "or_relayed", "relayed"]

# Besides those that the configuration names. Never authorization of itself: the client's key is for the gateway.
PASSED = (
    *("content-type", "accept", "user-agent", "traceparent", "tracestate", "x-correlation-id", "x-smg-routing-key"),
    *("anthropic-version", "anthropic-beta", "openai-beta"),
)
# What two engines can compute together.
APART = frozenset({"openai.chat", "openai.completions"})
# Whose streams end with an event of their own.
ENDED = APART | {"openai.responses", "anthropic.messages"}
ALONE = Asked()
# What describes connection and framing, and what we say ourselves.
OURS = frozenset(
    [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
        "expect",
        "accept-encoding",
        "x-request-id",
        "x-smg-hops",
    ]
)
# Gateways that a request has passed, this one not counted. With more behind it, one of them is most likely its own engine.
HOPS = "x-smg-hops"
MOST_HOPS = 4


class Passage(Struct, frozen=True, kw_only=True):
    """How a path is passed on. `endpoint`: for metrics; `target`: its path at the engine, empty = the same; `form`: the body is a form;
    `events`: what is streamed there are events, so that its silence may be filled before the engine has said so.
    """

    endpoint: str
    surface: str = "openai"
    target: str = ""
    form: bool = False
    events: bool = True


def or_relayed(handler: Handler, *, endpoint: str, target: str = "") -> Handler:
    """Gives a handler that passes on what is for engines over HTTP and leaves the rest to `handler`."""
    passage = Passage(endpoint=endpoint, target=target)

    def choose(http: Request, services: Services) -> Awaitable[Reply | StreamReply]:
        return _choose(http, services, handler, passage) if services.view.relayed() else handler(http, services)

    return choose


def relayed(endpoint: str, *, surface: str = "openai", target: str = "", form: bool = False, events: bool = True) -> Handler:
    """Gives the handler of a path that only engines over HTTP serve."""
    passage = Passage(endpoint=endpoint, surface=surface, target=target, form=form, events=events)

    async def refuse(http: Request, services: Services) -> Reply:
        raise Unimplemented(f"{http.method} {http.path} is not built yet for models whose engines are reached over gRPC")

    async def handle(http: Request, services: Services) -> Reply | StreamReply:
        if services.view.models() and not services.view.relayed():  # without any engine nobody knows yet how they will be reached
            return await refuse(http, services)
        return await _choose(http, services, refuse, passage)

    return handle


async def _choose(http: Request, services: Services, handler: Handler, passage: Passage) -> Reply | StreamReply:
    if passage.form:
        _check_origin(http, services)
    _check_query(http)
    body, media = await http.peek(), http.headers.get("content-type") or ""
    outline = await parsed(body, partial(outline_of_form, media=media) if passage.form else outline_of_json)
    model = services.models.resolve(outline.model)
    if model not in services.view.relayed():
        return await handler(http, services)
    apart = passage.endpoint in APART and services.view.is_paired(model)
    asked = await parsed(body, asked_in) if apart else ALONE
    request = RelayRequest(
        request_id=http.request_id,
        endpoint=passage.endpoint,
        model=model,
        name=outline.model,
        canonical=services.models.canonical(outline.model),
        target=(passage.target or http.path) + (f"?{http.query}" if http.query else ""),
        body=body,
        rename=partial(rename_in_form, media=media) if passage.form else rename_in_json,
        splice=None if passage.form else spliced,
        apart=apart,
        batch=asked.prompts * outline.n,
        scored=asked.scored,
        headers=_headers(http, hops=_hops(http) + 1, more=services.config.engines.forward_headers),
        keyless="authorization" in services.config.engines.forward_headers and bool(http.headers.get("authorization")),
        text=outline.text,
        sampling=Sampling(max_tokens=outline.max_tokens, n=outline.n),
        routing=routing(http, user=outline.user, priority=0),
        stream=outline.stream,
        ends=passage.endpoint in ENDED,
        deadline_s=deadline(http, timeout_s=services.config.server.request_timeout_s),
    )
    return StreamReply(pump=partial(services.relay.run, request), surface=passage.surface, comments=outline.stream and passage.events)


def _check_query(http: Request) -> None:
    """Granian lets UTF-8 pass, which no request line may hold (RFC 9112, 3.2): raises InvalidValue."""
    if not http.query.isascii():
        raise InvalidValue("the query has characters that must be percent-encoded")


def _check_origin(http: Request, services: Services) -> None:
    """A web page may send a form to any address without asking the browser's CORS check: raises Forbidden unless its origin is allowed."""
    origin, allowed = http.headers.get("origin"), services.config.server.cors_allowed_origins
    if origin is not None and "*" not in allowed and origin not in {known.rstrip("/") for known in allowed}:
        raise Forbidden("pages of this origin may not send forms here: it is not among the allowed origins")


def _hops(http: Request) -> int:
    """Gives the gateways that the request has passed. Raises LoopDetected when these are too many."""
    said = http.headers.get(HOPS) or ""
    hops = int(said) if said.isascii() and said.isdecimal() and len(said) < 4 else 0
    if hops >= MOST_HOPS:
        raise LoopDetected(
            f"the request has passed {hops} gateways already: one of them has been given itself, or one before it, as an engine"
        )
    return hops


def _headers(http: Request, *, hops: int, more: tuple[str, ...]) -> str:
    """Gives the lines that go to the engine. Values are of one line, as both fronts see to; what is not latin-1 cannot be sent on."""
    lines = [f"x-request-id: {http.request_id}\r\n", f"{HOPS}: {hops}\r\n"]
    for name in dict.fromkeys((*PASSED, *(name.lower() for name in more))):
        value = None if name in OURS else http.headers.get(name)
        if value and not ("\r" in value or "\n" in value):
            lines.append(f"{name}: {value.encode('latin-1', 'replace').decode('latin-1')}\r\n")
    return "".join(lines)
