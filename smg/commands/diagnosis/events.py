"""KV events, by which the gateway knows what engines have cached: told by the metrics of a gateway that runs, else asked of each engine."""

import asyncio
import http.client
import re
from contextlib import aclosing, closing
from typing import TypeAlias

from smg.commands.diagnosis.finding import Finding, good, warning
from smg.config import Config
from smg.engine import Engine, GrpcEngine
from smg.errors import SmgError, Unimplemented

__all__ = ["Told", "events_asked", "events_possible", "events_told", "followed"]

# By the metric's name, by the engine's address.
Told: TypeAlias = dict[str, dict[str, float]]

ANSWER_S = 3.0
LONGEST = 16 << 20
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
LINE = re.compile(r'^(smg_kv_\w+)\{worker="([^"]*)"\} (\S+)$', re.MULTILINE)
EVERY_GATEWAY_HAS = "\nsmg_prefix_index_entries "
# An engine that has anything to tell tells it at once.
LISTEN_S = 2.0
# A subscription is taken for good when it has stood for six seconds, so that a gateway that was just started is given time.
STALE_S = 15.0
LATE_S = 5.0
PREDICTED = "until they come, what the engine has cached is guessed from what was sent to it"


def followed(config: Config) -> Told | None:
    """Gives what the gateway that runs says of the KV events that it follows; None when none answers on the metrics port."""
    metrics = config.metrics
    host = ANYWHERE.get(metrics.prometheus_host, metrics.prometheus_host)
    if not metrics.prometheus_port:
        return None
    with closing(http.client.HTTPConnection(host, metrics.prometheus_port, timeout=ANSWER_S)) as connection:
        try:
            text = _metrics(connection)
        except (OSError, http.client.HTTPException):
            return None
    if EVERY_GATEWAY_HAS not in text:
        return None
    told: Told = {}
    for name, url, value in LINE.findall(text):
        told.setdefault(name, {})[url] = float(value)
    return told


def _metrics(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/metrics")
    return connection.getresponse().read(LONGEST).decode("utf-8", "replace")


def events_told(url: str, told: Told, config: Config, *, possible: bool = True) -> Finding:
    """Judges what the gateway says of one engine's events; `possible`: its protocol has them."""
    subject = f"KV events of {url}"
    live, stale = (told.get(f"smg_kv_events_{name}", {}).get(url) for name in ("live", "stale_seconds"))
    lag = told.get("smg_kv_events_lag_seconds", {}).get(url, 0.0)
    blocks = told.get("smg_kv_blocks", {}).get(url, 0.0)
    if live is None:
        advice = "systemctl reload smg, if the engine was named since it was started; else it has not been ready yet"
        return warning(subject, "the running gateway does not follow them: it does not know this engine, or has not found it ready", advice)
    if live and lag > LATE_S:
        advice = "compare the clocks of the two machines (timedatectl); if they agree, the engine or this machine has too much to do"
        return warning(subject, f"the last came {lag:.0f} s late", advice)
    if live:
        return good(subject, f"the running gateway follows them, and knows of {blocks:.0f} cached blocks")
    if stale is None:
        return _none(subject, config, possible=possible)
    if stale < STALE_S:
        return good(subject, "the running gateway has just asked for them")
    advice = f"look at the logs of the engine and of the gateway (journalctl -u smg); {PREDICTED}"
    return warning(subject, f"the running gateway has not had them for {stale:.0f} s", advice)


async def events_asked(url: str, engine: Engine, config: Config) -> Finding:
    """Subscribes for a moment, as the gateway would."""
    subject = f"KV events of {url}"
    try:
        async with asyncio.timeout(LISTEN_S):
            number = await _first(engine)
    except TimeoutError:
        return good(subject, "the engine takes the subscription, and has had nothing to tell yet")
    except Unimplemented:
        return _none(subject, config, possible=events_possible(engine))
    except SmgError as error:
        seen = f"{error.message}: {error.detail}" if error.detail else error.message
        return warning(subject, f"the engine does not give them: {seen}", f"look at the engine's log; {PREDICTED}")
    if number is None:
        return warning(subject, "the engine ended the subscription at once", f"look at the engine's log; {PREDICTED}")
    return good(subject, f"they flow: batch {number} came at once")


async def _first(engine: Engine) -> int | None:
    if not isinstance(engine, GrpcEngine) or not engine.features.kv_events:
        raise Unimplemented(f"the {engine.runtime} protocol has no KV events")
    async with aclosing(engine.kv_events(0)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            return batch.sequence
    return None


def events_possible(engine: Engine) -> bool:
    """True when the engine's protocol has KV events."""
    return isinstance(engine, GrpcEngine) and engine.features.kv_events


def _none(subject: str, config: Config, *, possible: bool) -> Finding:
    seen = "the engine has none, so what it has cached is guessed from what was sent to it"
    if not possible or config.routing.policy != "cache_aware":
        return good(subject, seen)
    advice = "turn them on where the engine has them (vLLM and SGLang: --kv-events-config), for cache_aware routes by them"
    return warning(subject, seen, advice)
