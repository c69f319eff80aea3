"""The engines that the configuration names, as the control process registers them at its start."""

from collections.abc import Iterator

from smg.config import Config
from smg.config.check import prefill_engines
from smg.worker.record import EngineSpec

__all__ = ["listed_engines"]


def listed_engines(config: Config) -> list[EngineSpec]:
    """Gives them in their order."""
    return list(_listed(config))


def _listed(config: Config) -> Iterator[EngineSpec]:
    engines = config.engines
    for url in engines.worker_urls:
        yield EngineSpec(url=url, backend=engines.backend)
    for url, port in prefill_engines(engines.prefill):
        yield EngineSpec(url=url, backend=engines.backend, role="prefill", bootstrap_port=int(port or 0))
    for url in engines.decode:
        yield EngineSpec(url=url, backend=engines.backend, role="decode")
