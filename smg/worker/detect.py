"""What an engine says of itself, asked once when it is first reached and again after it was away: runtime, model, tokenizer."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path, PurePath

import msgspec

from smg.config import Config
from smg.engine import Engine, EngineOptions, HttpEngine, ModelInfo, ServerInfo, detect, open_engine
from smg.errors import EngineProtocol, EngineRejected, Unimplemented
from smg.worker.archive import unpack
from smg.worker.pool import engine_options, options_for
from smg.worker.record import EngineRecord

__all__ = ["Detector"]

log = logging.getLogger(__name__)


def public_name(name: str) -> str:
    """Gives what clients may know of a model's name: of a folder on the engine's machine only its last part."""
    return PurePath(name).name if name.startswith(("/", "./", "../", "~")) else name


def is_readable(path: str) -> bool:
    """True for a path that can be read here; an engine may say what is none."""
    return bool(path) and "\0" not in path and os.access(path, os.R_OK)


class Detector:
    """Opens drivers and asks. `models` gives the models that are registered; `detect_runtime` and `open_driver` are the engine package's,
    or a test's.
    """

    def __init__(
        self,
        config: Config,
        *,
        state_dir: Path,
        models: Callable[[], Collection[str]] = tuple,
        detect_runtime: Callable[..., Awaitable[str]] = detect,
        open_driver: Callable[..., Engine] = open_engine,
    ) -> None:
        self._config = config
        self._options: EngineOptions = engine_options(config)
        self._folder = state_dir / "tokenizers"
        self._models = models
        self._detect_runtime = detect_runtime
        self._open_driver = open_driver

    async def open(self, record: EngineRecord) -> tuple[Engine, EngineRecord]:
        """Gives a started driver, and the record with its runtime. Raises the EngineError family, and ConfigError for a wrong URL."""
        options = options_for(record, self._options)
        runtime = record.backend if record.backend != "auto" else self._config.engines.backend
        if runtime == "auto":
            runtime = await self._detect_runtime(record.address, options=options, timeout_s=self._config.health.check_timeout_s)
        engine = self._open_driver(record.address, runtime=runtime, options=options)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        return engine, msgspec.structs.replace(record, runtime=runtime)

    async def describe(self, engine: Engine, record: EngineRecord) -> EngineRecord:
        """Gives the record with what the engine says of its model. Raises the EngineError family, and Unimplemented."""
        info = await engine.model_info()
        model = record.served_as or public_name(info.served_name or info.model_path)
        if not model:
            raise EngineProtocol("the engine does not say which model it serves")
        if record.role != "regular" and not record.relayed and engine.features.disaggregation == "none":
            raise Unimplemented(f"{engine.runtime} engines cannot compute prefill and decode apart")
        names = (*record.served_aliases, public_name(info.served_name), public_name(info.model_path), *map(public_name, info.names))
        aliases = tuple(name for name in dict.fromkeys(names) if name not in (model, ""))
        tokenizer_dir = record.tokenizer_dir
        if info != record.info or not (tokenizer_dir and os.access(tokenizer_dir, os.R_OK)):
            several = any(name not in ("", model) for name in self._models())
            tokenizer_dir = await self._tokenizer(engine, info, own=several)
        return msgspec.structs.replace(
            record,
            model=model,
            aliases=aliases,
            context_length=info.context_length,
            info=info,
            server=await self._server(engine),
            tokenizer_dir=tokenizer_dir,
        )

    @staticmethod
    async def _server(engine: Engine) -> ServerInfo:
        """What changes with every request is left out, so that a record changes only when the engine does."""
        try:
            return msgspec.structs.replace(await engine.server_info(), active_requests=0)
        except (Unimplemented, EngineProtocol) as error:
            log.debug("no server info: %s", error.message, extra={"engine": engine.url})
            return ServerInfo()

    async def _tokenizer(self, engine: Engine, info: ModelInfo, *, own: bool) -> str | None:
        """Fetches the tokenizer unless it can be read here; None also when the engine does not offer it. `own`: what the configuration
        names may be another model's.
        """
        configured = (self._config.model.tokenizer_path, self._config.model.model_path)
        here = (*(() if own else configured), info.tokenizer_path, info.model_path)
        if isinstance(engine, HttpEngine) or any(map(is_readable, here)):
            return None
        if not engine.features.tokenizer:
            log.warning("no tokenizer: give --model-path or --tokenizer-path", extra={"engine": engine.url})
            return None
        try:
            data = await engine.tokenizer_archive()
        except (Unimplemented, EngineProtocol, EngineRejected) as error:
            log.warning("the engine gives no tokenizer: %s", error.message, extra={"engine": engine.url, "detail": error.detail})
            return None
        folder = await asyncio.to_thread(self._unpack, data, engine.url)
        return str(folder) if folder else None

    def _unpack(self, data: bytes, url: str) -> Path | None:
        try:
            return unpack(data, folder=self._folder)
        except (EngineProtocol, OSError) as error:
            log.error("the engine's tokenizer cannot be kept: %s", error, extra={"engine": url})
            return None
