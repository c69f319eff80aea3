"""What a data worker owns while it lives: made at its start, closed in reverse order at its end. Handed to every handler."""

import time
from pathlib import Path

from smg.api.base import Control, Services
from smg.api.openai.chat_request import ChatReader
from smg.config import Config
from smg.obs.metrics import Meter
from smg.pipeline import ModelDirectory, Pipeline, Relay
from smg.worker import EnginePool, WorkerView

__all__ = ["build", "close"]


async def build(config: Config, view: WorkerView, *, meter: Meter, control: Control, state: Path | None = None) -> Services:
    """Connects the parts of a data worker; models that are registered by then are loaded before the first request.

    `control` asks the control process. `state`: the folder for what outlives a restart.
    """
    pool = EnginePool(config)
    models = ModelDirectory(config, view, created=int(time.time()), meter=meter, state=state)
    pipeline = Pipeline(config, models=models, view=view, pool=pool, meter=meter)
    relay = Relay(config, view=view, pool=pool, meter=meter)
    await models.preload()
    return Services(
        config=config,
        pipeline=pipeline,
        relay=relay,
        models=models,
        view=view,
        pool=pool,
        chats=_chat_reader(config),
        control=control,
    )


def _chat_reader(config: Config) -> ChatReader:
    model = config.model
    return ChatReader(repeat_bytes=model.tokenizer_cache_l0_bytes // 2 if model.tokenizer_cache_enable_l0 else 0)


async def close(services: Services) -> None:
    """Closes what `build` made, in reverse."""
    await services.relay.close()
    await services.pipeline.close()
    await services.models.close()
    await services.pool.close()
