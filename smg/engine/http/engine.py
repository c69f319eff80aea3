"""The driver of an engine that is asked over OpenAI's HTTP API. It looks after the connections and asks for health, model and load.

What it generates is not read here: `open` passes a request on, and its answer is relayed as it comes (`smg.pipeline.relay`).
"""

import asyncio
from collections.abc import AsyncIterator

from msgspec import structs

from smg.engine.base import Engine, EngineDelta, EngineOptions, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.engine.http.address import read_address
from smg.engine.http.call import HttpCall, HttpRequest
from smg.engine.http.facts import loads_of_metrics, model_info_of, owner_of, ranks_in_metrics, server_info_of, version_of
from smg.engine.http.pool import HttpPool, Sent
from smg.errors import EngineError, EngineProtocol, EngineTimeout, EngineUnavailable, Unimplemented

__all__ = ["HttpEngine"]

# Lists and metrics of engines are some kilobytes.
LONGEST_FACTS = 4 << 20
ABSENT = (404, 405, 501)
# Its name today, and before.
SGLANG_SERVER = ("/server_info", "/get_server_info")
# Runtimes of which a request can name the data-parallel rank.
RANKED = ("vllm", "sglang")


class HttpEngine(Engine):
    """`runtime` is what the engine seems to be: vllm, sglang, llamacpp, or openai for any other."""

    features = Features(kv_events=False, tokenizer=False)

    def __init__(self, url: str, *, runtime: str = "openai", options: EngineOptions | None = None) -> None:
        super().__init__(url, options=options)
        self.runtime = runtime
        self.features = structs.replace(type(self).features, data_parallel_rank=runtime in RANKED)
        self._pool: HttpPool | None = None

    async def start(self) -> None:
        """Connects to nothing yet. Raises ConfigError for a bad URL."""
        self._pool = HttpPool(read_address(self.url), options=self.options)

    async def close(self) -> None:
        """Cuts every connection. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def open(self, request: HttpRequest, *, keyless: bool = False, sent: Sent = None) -> HttpCall:
        """Passes a request on; gives the call once the answer's head is there, to be closed by the caller. The deadline is the caller's.

        Raises EngineUnavailable when the engine cannot be reached or goes away before that, EngineBusy when there are too many requests
        under way, EngineProtocol. `keyless`: the request has a key of its own. `sent` gets the call once the engine may see the request.
        """
        if self._pool is None:
            raise EngineUnavailable("the connection to the engine is closed")
        return await self._pool.send(request, keyless=keyless, sent=sent)

    async def detect(self) -> str:
        """Gives the runtime's name. Raises as `model_info`."""
        return owner_of(await self._got("/v1/models"))

    async def health(self) -> bool:
        """True when the engine says that it serves; one without such a path serves when it lists its models."""
        status, _ = await self._get(self.options.health_path)
        if status in ABSENT:
            status, _ = await self._get("/v1/models")
        return 200 <= status < 300

    async def model_info(self) -> ModelInfo:
        """Asks for the models, of which the first is the engine's."""
        return model_info_of(await self._got("/v1/models"))

    async def server_info(self) -> ServerInfo:
        """Asks for version and ranks, which vLLM and SGLang tell; others are taken for silent."""
        if self.runtime == "sglang":
            for path in SGLANG_SERVER:
                status, body = await self._get(path)
                if status == 200:
                    return server_info_of(body)
            return ServerInfo()
        status, body = await self._get("/version")
        version = version_of(body) if status == 200 else ""
        if self.runtime != "vllm":
            return ServerInfo(version=version)
        status, body = await self._get("/metrics")
        return ServerInfo(version=version, data_parallel_size=ranks_in_metrics(body.decode("utf-8", "replace")) if status == 200 else 1)

    async def loads(self) -> list[Load]:
        """Reads the engine's metrics. Raises EngineProtocol when it has none that are known."""
        loads = loads_of_metrics((await self._got("/metrics")).decode("utf-8", "replace"))
        if not loads:
            raise EngineProtocol("the engine's metrics do not tell its load")
        return loads

    def check(self, request: EngineRequest) -> None:
        """Refuses what is meant for engines that get token ids."""
        raise Unimplemented("this engine is asked over HTTP, where requests are passed on as they are")

    async def generate(self, request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        """As `check`."""
        self.check(request)
        yield EngineDelta()

    async def abort(self, request_id: str) -> None:
        """A call is ended by closing it."""

    async def tokenizer_archive(self) -> bytes:
        """There is none: the engine tokenizes."""
        raise Unimplemented("an HTTP engine gives no tokenizer")

    async def _got(self, path: str) -> bytes:
        status, body = await self._get(path)
        if status in (401, 403):
            raise EngineError("the engine does not accept the gateway's credentials", detail=f"{path}: {status}")
        if status >= 500:
            raise EngineUnavailable("the engine fails", detail=f"{path}: {status}")
        if status != 200:
            raise EngineProtocol("the engine does not offer this path", detail=f"{path}: {status}")
        return body

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(self.options.unary_timeout_s):
                call = await self.open(HttpRequest(method="GET", target=path))
                try:
                    head = await call.head()
                    body = await call.read(LONGEST_FACTS)
                finally:
                    call.close()
        except TimeoutError as error:
            raise EngineTimeout("the engine did not answer in time", detail=path) from error
        if body is None:
            raise EngineProtocol("the engine's answer is too long", detail=path)
        return head.status, body
