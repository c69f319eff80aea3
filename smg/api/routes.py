"""The table of paths: which handler answers, who may call it, which dialect its errors have. Read by `smg.server.app`."""

from msgspec import Struct

from smg.api.base import Handler, Reply, Request, Services
from smg.api.health import health, readiness
from smg.api.models import list_models, retrieve_model
from smg.api.openai.chat import chat_completions
from smg.api.openai.completions import completions
from smg.api.parse import parse_function_call, parse_reasoning
from smg.api.relay import or_relayed, relayed
from smg.api.tokenize import detokenize, tokenize
from smg.api.workers import add_worker, edit_worker, get_worker, list_workers, remove_worker, replace_worker
from smg.errors import MethodNotAllowed, NotFound, Unimplemented

__all__ = ["RELAYED", "ROUTES", "UNBUILT", "Route", "RouteTable"]


class Route(Struct, frozen=True, kw_only=True):
    """One line of the table. A last segment `{name}` in `path` takes the rest of the path, slashes too. `id_prefix`: of request ids.

    `managing`: it changes or shows the gateway itself, which tenants may not. `form`: the body is a form, not JSON.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False
    managing: bool = False
    surface: str = "openai"
    id_prefix: str = "req-"
    form: bool = False


async def not_built(http: Request, services: Services) -> Reply:
    """Answers for paths of the original that are not built."""
    raise Unimplemented(f"{http.method} {http.path} is not built yet")


ROUTES = (
    Route(method="POST", path="/v1/chat/completions", handler=or_relayed(chat_completions, endpoint="openai.chat"), id_prefix="chatcmpl-"),
    Route(method="POST", path="/v1/completions", handler=or_relayed(completions, endpoint="openai.completions"), id_prefix="cmpl-"),
    Route(method="GET", path="/v1/models", handler=list_models, public=True),
    Route(method="GET", path="/v1/models/{model}", handler=retrieve_model, public=True),
    Route(method="POST", path="/v1/tokenize", handler=or_relayed(tokenize, endpoint="tokenize", target="/tokenize")),
    Route(method="POST", path="/v1/detokenize", handler=or_relayed(detokenize, endpoint="detokenize", target="/detokenize")),
    Route(method="POST", path="/parse/function_call", handler=parse_function_call, surface="parse"),
    Route(method="POST", path="/parse/reasoning", handler=parse_reasoning, surface="parse"),
    Route(method="GET", path="/workers", handler=list_workers, surface="workers", managing=True),
    Route(method="POST", path="/workers", handler=add_worker, surface="workers", managing=True),
    Route(method="GET", path="/workers/{id}", handler=get_worker, surface="workers", managing=True),
    Route(method="PUT", path="/workers/{id}", handler=replace_worker, surface="workers", managing=True),
    Route(method="PATCH", path="/workers/{id}", handler=edit_worker, surface="workers", managing=True),
    Route(method="DELETE", path="/workers/{id}", handler=remove_worker, surface="workers", managing=True),
    Route(method="GET", path="/health", handler=health, public=True),
    Route(method="GET", path="/liveness", handler=health, public=True),
    Route(method="GET", path="/readiness", handler=readiness, public=True),
)

# What only engines over HTTP serve: requests are passed on to them.
RELAYED = (
    Route(
        method="POST",
        path="/v1/responses",
        handler=relayed("openai.responses", surface="responses"),
        surface="responses",
        id_prefix="resp-",
    ),
    Route(
        method="POST",
        path="/v1/messages",
        handler=relayed("anthropic.messages", surface="anthropic"),
        surface="anthropic",
        id_prefix="msg_",
    ),
    Route(
        method="POST",
        path="/v1/messages/count_tokens",
        handler=relayed("anthropic.count_tokens", surface="anthropic", events=False),
        surface="anthropic",
    ),
    Route(method="POST", path="/v1/audio/transcriptions", handler=relayed("openai.transcriptions", form=True), form=True),
    Route(method="POST", path="/v1/audio/translations", handler=relayed("openai.translations", form=True), form=True),
    Route(method="POST", path="/v1/audio/speech", handler=relayed("openai.speech", events=False)),  # of sound
    Route(method="POST", path="/generate", handler=relayed("generate"), id_prefix="gnt-"),
    *(
        Route(method="POST", path=path, handler=relayed(path.rpartition("/")[2], events=False))
        for path in (
            *("/v1/embeddings", "/v1/classify", "/classify", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/pooling"),
            *("/tokenize", "/detokenize"),
        )
    ),
)

# Paths of the original that are not built.
UNBUILT = (
    ("GET", "/v1/responses/{rest}"),
    ("POST", "/v1/responses/{rest}"),
    ("DELETE", "/v1/responses/{rest}"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{rest}"),
    ("POST", "/v1/conversations/{rest}"),
    ("DELETE", "/v1/conversations/{rest}"),
    ("POST", "/v1/interactions"),
    ("POST", "/v1/realtime/{rest}"),
    ("GET", "/v1/realtime"),
    ("GET", "/health_generate"),
    ("GET", "/get_model_info"),
    ("GET", "/get_server_info"),
    ("GET", "/engine_metrics"),
    ("POST", "/flush_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("GET", "/get_loads"),
    ("GET", "/wasm"),
    ("POST", "/wasm"),
    ("DELETE", "/wasm/{rest}"),
    ("GET", "/v1/tokenizers"),
    ("POST", "/v1/tokenizers"),
    ("GET", "/v1/tokenizers/{rest}"),
    ("DELETE", "/v1/tokenizers/{rest}"),
)


class RouteTable:
    """Finds routes by path and method."""

    def __init__(self, routes: tuple[Route, ...] = (*ROUTES, *RELAYED), unbuilt: tuple[tuple[str, str], ...] = UNBUILT) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._open: dict[str, dict[str, Route]] = {}
        public = {"/health_generate", "/get_model_info", "/get_server_info", "/engine_metrics"}
        for route in (*routes, *(Route(method=m, path=p, handler=not_built, public=p in public) for m, p in unbuilt)):
            head, brace, _ = route.path.partition("{")
            (self._open if brace else self._exact).setdefault(head, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Gives the route and the named part of the path. HEAD is answered by GET's. Raises NotFound, MethodNotAllowed."""
        exact = self._exact.get(path)
        if exact is not None and (known := exact.get(method)) is not None:
            return known, {}
        by_method, params = self._by_path(path)
        route = by_method.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(f"{method[:20]} is not allowed here; use {' or '.join(by_method)}")
        name = route.path.partition("{")[2].rstrip("}")
        return route, {name: params} if name else {}

    def methods(self, path: str) -> list[str]:
        """Gives the methods of a path, for Allow headers. Raises NotFound."""
        found = list(self._by_path(path)[0])
        return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]

    def _by_path(self, path: str) -> tuple[dict[str, Route], str]:
        exact = self._exact.get(path)
        if exact is not None:
            return exact, ""
        for head, by_method in self._open.items():
            if path.startswith(head) and len(path) > len(head):
                return by_method, path[len(head) :]
        raise NotFound("there is nothing at this path")
