"""The models that clients can name, with what is loaded for each: tokenizer, template, parsers, limits. One directory a data worker."""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from msgspec import Struct, structs

from smg._ext import Vocabulary
from smg.config import Config
from smg.errors import ConfigError, InvalidValue, ModelNotFound, NoEngine
from smg.obs.metrics import Meter
from smg.parser import detect_reasoning, detect_tool
from smg.pipeline.prompt_cache import CacheMeter, PromptCache
from smg.pipeline.side import INLINE_CHARACTERS, SideThread, trim_memory
from smg.template import ChatTemplate, load_template
from smg.tokenizer import ModelFolder, Tokenizer, load_tokenizer, read_folder
from smg.worker import EngineRecord, EngineState, WorkerView

__all__ = ["ModelCard", "ModelDirectory", "ServedModel"]

log = logging.getLogger(__name__)

# A character can shrink when a tokenizer composes it (NFC: at most 4 to 1 in practice), so this many characters may become one.
COMPOSITION = 4
# When to ask again for a model whose engines were all taken away.
AWAY_RETRY_S = 5
# What makes a template's text depend on more than the request; looked for in its source, so that a doubt is a yes.
UNREPEATABLE = ("strftime_now", "random")
# Encoded once by each thread that encodes, for the quick encoder sets itself up at its first text: 130 ms, and 10 to 40 ms a thread. Longer
# than what it encodes without giving the interpreter free.
FIRST_TEXT = "Zażółć gęślą jaźń, don't 漢字 🤣 12345\n" * 600


class Parsers(TypedDict):
    """Fields of a `ServedModel`."""

    reasoning_parser: str | None
    tool_parser: str | None
    named: tuple[str, str]


class ModelCard(Struct, frozen=True, kw_only=True):
    """What `/v1/models` says of a model."""

    id: str
    aliases: tuple[str, ...]
    context_length: int
    created: int


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that is loaded and can be asked. `context_length` 0 = unknown; `longest_token` in characters.

    named       reasoning and tool parser that the engine's labels name, empty where they name none
    number      no other loaded model of the process has it
    repeatable  the prompt of a chat depends on the chat alone, so that it can be kept in `cache`
    side        where long prompts are made
    """

    id: str
    folder: ModelFolder
    tokenizer: Tokenizer
    template: ChatTemplate | None
    context_length: int
    eos_token_ids: tuple[int, ...]
    reasoning_parser: str | None
    tool_parser: str | None
    longest_token: int
    vocabulary: Vocabulary | None = None  # for native detokenizing, where the tokenizer is of that kind
    named: tuple[str, str] = ("", "")
    number: int = 0
    repeatable: bool = False
    cache: PromptCache | None = None
    cache_meter: CacheMeter = CacheMeter()
    side: SideThread | None = None

    def surely_too_long(self, characters: int) -> bool:
        """True when no text of that many characters fits into the context, so that it need not be tokenized to be refused."""
        return bool(self.context_length) and characters > self.context_length * self.longest_token * COMPOSITION


class ModelDirectory:
    """Finds models by name or alias, and loads each once: all who wait share one load, which runs in a thread.

    `state`: folder in which what was found out about a tokenizer is kept for the next start.
    """

    def __init__(self, config: Config, view: WorkerView, *, created: int, meter: Meter | None = None, state: Path | None = None) -> None:
        self._config = config
        self._view = view
        self._created = created
        self._aliases = dict(alias.split("=", 1) for alias in config.model.model_alias)
        self._loads: dict[tuple[str, str], asyncio.Task[ServedModel]] = {}
        self._served: dict[str, tuple[EngineRecord, ServedModel]] = {}  # found without a look at files, until the record changes
        self._numbers = itertools.count()
        self._state = state
        self._cache = _prompt_cache(config)
        self._cache_meter = CacheMeter(meter)
        self._side = SideThread()

    def cards(self) -> list[ModelCard]:
        """Gives every model of which an engine is registered, ready or not."""
        cards = []
        for model, records in self._view.models().items():
            aliases = {alias for record in records for alias in record.aliases} | {a for a, m in self._aliases.items() if m == model}
            length = min((record.context_length for record in records if record.context_length), default=0)
            cards.append(ModelCard(id=model, aliases=tuple(sorted(aliases)), context_length=length, created=self._created))
        return cards

    def canonical(self, name: str) -> str:
        """Gives the name that an alias of the configuration stands for, and any other as it is."""
        return self._aliases.get(name, name)

    def resolve(self, name: str) -> str:
        """Gives the model's own id for a name a client used; an empty name means the only model there is, where it need not be named.

        Raises ModelNotFound, NoEngine while none is registered or all have left lately, InvalidValue for a request that must name one.
        """
        models = self._view.models()
        if not models and not self._view.departed(self._aliases.get(name, name)):
            raise self.none_yet()
        if not name and len(models) == 1 and not self._config.routing.enable_igw:
            return next(iter(models))
        if not name:
            raise InvalidValue("the request must name a model", param="model")
        name = self._aliases.get(name, name)
        if name in models:
            return name
        for model, records in models.items():
            if any(name in record.aliases for record in records):
                return model
        if self._view.departed(name):
            raise NoEngine(f"every engine of {name!r} has left", retry_after_s=AWAY_RETRY_S)
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")

    def none_yet(self) -> NoEngine:
        """Gives the error for clients that come before any engine has said what it serves."""
        tried = sum(self._view.state(record.slot) is not EngineState.DRAINING for record in self._view.registered())
        waits = f"no engine has answered yet ({tried} {'is' if tried == 1 else 'are'} being tried)"
        return NoEngine(waits if tried else "no engine is registered yet", retry_after_s=1)

    async def get(self, name: str) -> ServedModel:
        """Gives the loaded model. Raises ModelNotFound, or NoEngine while its files cannot be read."""
        model = self.resolve(name)
        record = self._view.models()[model][0]
        served = self._served.get(model)
        if served is not None and served[0] is record:
            return served[1]
        key = (model, str(self._source(record)))
        task = self._loads.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._loads[key] = asyncio.create_task(self._loaded(model, record))
        try:
            loaded = await asyncio.shield(task)
        except (ConfigError, OSError) as error:
            raise NoEngine(f"the tokenizer of {model!r} cannot be loaded", retry_after_s=5) from error
        length, named = record.context_length or loaded.folder.context_length, named_parsers(record)
        if (length, named) != (loaded.context_length, loaded.named):  # said anew; prompts that are kept were made for what was said before
            loaded = structs.replace(loaded, context_length=length, number=next(self._numbers), **self._parsers(loaded, named))
        self._served[model] = (record, loaded)
        return loaded

    async def _loaded(self, model: str, record: EngineRecord) -> ServedModel:
        """Loads in a thread of its own, with whose end goes what encoding for the self-test left there."""
        loader = SideThread()
        try:
            served = await loader.run(self._load, model, record)
        finally:
            loader.close()
        await self._side.run(served.tokenizer.encode, FIRST_TEXT)
        served.tokenizer.encode(FIRST_TEXT[:INLINE_CHARACTERS])
        return served

    async def preload(self) -> None:
        """Loads every registered model, so that the first request does not wait for it."""
        self._forget()
        names = [name for name in self._view.models() if name not in self._view.relayed()]
        for name, result in zip(names, await asyncio.gather(*(self.get(name) for name in names), return_exceptions=True), strict=True):
            if isinstance(result, Exception):
                log.error("model cannot be served: %s", result, extra={"model": name, "cause": repr(result.__cause__)})

    async def close(self) -> None:
        """Forgets what is loaded."""
        for task in self._loads.values():
            task.cancel()
        self._loads.clear()
        self._served.clear()
        self._side.close()

    def _forget(self) -> None:
        """Lets go of models that are here no more, and were not until lately."""
        here = self._view.models()
        for model in [model for model, _ in self._loads if model not in here and not self._view.departed(model)]:
            self._served.pop(model, None)
            for key in [key for key in self._loads if key[0] == model]:
                self._loads.pop(key).cancel()

    def _source(self, record: EngineRecord) -> Path:
        """Where the tokenizer is. With several models what the configuration names is for those whose engines give none."""
        configured = (self._config.model.tokenizer_path, self._config.model.model_path)
        own = (record.tokenizer_dir, record.info.tokenizer_path, record.info.model_path)
        label = dict(record.labels).get("tokenizer_path")
        for path in (label, *own, *configured) if len(self._view.models()) > 1 else (label, *configured, *own):
            if path and os.path.exists(path):  # False too for what cannot be a path, which engines may say
                return Path(path)
        raise NoEngine(f"no tokenizer for {record.model!r}: give --model-path or --tokenizer-path", retry_after_s=5)

    def _load(self, model: str, record: EngineRecord) -> ServedModel:
        source = self._source(record)
        folder = read_folder(source)
        settings = self._config.model
        cache_bytes = settings.tokenizer_cache_l1_bytes if settings.tokenizer_cache_enable_l1 else 0
        tokenizer = load_tokenizer(source, cache_bytes=cache_bytes, state=self._state and self._state / "tokenizers")
        template = load_template(folder, override=settings.chat_template or None, trust_client=settings.trust_request_chat_template)
        text = template.source if template else ""
        served = ServedModel(
            id=model,
            folder=folder,
            tokenizer=tokenizer,
            template=template,
            context_length=record.context_length or folder.context_length,
            eos_token_ids=tuple(sorted({*folder.eos_token_ids, *tokenizer.eos_token_ids, *record.info.eos_token_ids})),
            reasoning_parser=None,
            tool_parser=None,
            longest_token=tokenizer.longest_token,
            vocabulary=_vocabulary(tokenizer) if self._config.engines.data_plane == "native" else None,
            number=next(self._numbers),
            repeatable=not any(word in source for source in (text, *folder.chat_templates.values()) for word in UNREPEATABLE),
            cache=self._cache,
            cache_meter=self._cache_meter,
            side=self._side,
        )
        trim_memory()
        return structs.replace(served, **self._parsers(served, named_parsers(record)))

    def _parsers(self, served: ServedModel, named: tuple[str, str]) -> Parsers:
        """Gives the fields that say which parsers a model has: what labels name, else the configuration, else what its template shows."""
        settings, text = self._config.model, served.template.source if served.template else ""
        reasoning = _chosen(named[0] or settings.reasoning_parser, detect_reasoning, served.id, text, served.folder)
        tool = _chosen(named[1] or settings.tool_call_parser, detect_tool, served.id, text, served.folder)
        return {"reasoning_parser": reasoning, "tool_parser": tool, "named": named}


def named_parsers(record: EngineRecord) -> tuple[str, str]:
    """Gives the reasoning and the tool parser that an engine's labels name, empty where they name none."""
    labels = dict(record.labels)
    return labels.get("reasoning_parser", ""), labels.get("tool_parser", "")


def _prompt_cache(config: Config) -> PromptCache | None:
    settings = config.model
    if not settings.tokenizer_cache_enable_l0:
        return None
    return PromptCache(limit_bytes=settings.tokenizer_cache_l0_bytes // 2, limit_entries=settings.tokenizer_cache_l0_max_entries)


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary | None:
    if tokenizer.byte_level:
        return Vocabulary(list(tokenizer.pieces()), tokenizer.special_ids)
    if (joined := tokenizer.joined_text) is None:
        return None
    strip, strips = joined
    return Vocabulary(list(tokenizer.pieces()), tokenizer.special_ids, text=True, strip=strip, strips=strips)


def _chosen(name: str, detect: Callable[..., str | None], model: str, template: str, folder: ModelFolder) -> str | None:
    if name:
        return None if name in ("none", "passthrough") else name
    return detect(template=template, model=model, architectures=folder.architectures)
