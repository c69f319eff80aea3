"""An engine's URL in, the name of the protocol it speaks out: what is asked once, when an engine is registered without a runtime."""

import asyncio

import grpc
from msgspec import structs

from smg.engine.base import ENGINES, EngineOptions
from smg.engine.channel import call_metadata, open_channel
from smg.engine.grpc import GrpcEngine
from smg.engine.http import HTTP_SCHEMES, HttpEngine
from smg.engine.status import error_of_status
from smg.errors import EngineProtocol

__all__ = ["detect"]


async def detect(url: str, *, options: EngineOptions | None = None, timeout_s: float = 5.0) -> str:
    """Asks for the health of every known service at once, on one channel and one deadline; over HTTP, whose models they are. Gives the
    name of the runtime.

    Raises EngineUnavailable or EngineTimeout when nobody answers, EngineProtocol when no known service is there, ConfigError for a bad URL.
    """
    options = options or EngineOptions()
    if url.startswith(HTTP_SCHEMES):
        return await _detect_http(url, options=options, timeout_s=timeout_s)
    channel = await open_channel(url, options=options)
    names = [name for name, driver in ENGINES if issubclass(driver, GrpcEngine)]
    metadata = call_metadata(options)
    try:
        codes = await asyncio.gather(*(_ask(channel, name, metadata=metadata, timeout_s=timeout_s) for name in names))
    finally:
        await channel.close(None)
    absent = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    known = [name for name, (code, _) in zip(names, codes, strict=True) if code not in absent]
    if len(known) == 1:
        return known[0]
    for code, details in codes:
        if code is not grpc.StatusCode.UNIMPLEMENTED:
            raise error_of_status(code, details)
    raise EngineProtocol(f"the engine speaks none of the known protocols ({', '.join(names)})")


async def _detect_http(url: str, *, options: EngineOptions, timeout_s: float) -> str:
    engine = HttpEngine(url, options=structs.replace(options, unary_timeout_s=timeout_s))
    await engine.start()
    try:
        return await engine.detect()
    finally:
        await engine.close()


async def _ask(
    channel: grpc.aio.Channel, name: str, *, metadata: tuple[tuple[str, str], ...], timeout_s: float
) -> tuple[grpc.StatusCode, str | None]:
    """The status of a health check; its answer does not matter, an engine that is still loading has its protocol already."""
    driver = ENGINES.get(name)
    assert issubclass(driver, GrpcEngine)
    call = channel.unary_unary(driver.path("HealthCheck"), None, None)(b"", timeout=timeout_s, metadata=metadata, wait_for_ready=False)
    return await call.code(), await call.details()
