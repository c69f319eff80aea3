"""The engines that the configuration names, as the control process registers them at its start."""

from smg.config import Config
from smg.worker.record import EngineSpec

__all__ = ["listed_engines"]


def listed_engines(config: Config) -> list[EngineSpec]:
    """Gives them in their order."""
    return [EngineSpec(url=url, backend=config.engines.backend) for url in config.engines.worker_urls]
