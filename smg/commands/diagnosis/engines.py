"""The engines, each asked as the control process asks it at its start: protocol, model, tokenizer, KV events; then a chat is rendered."""

import asyncio
import datetime
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import structs

from smg.commands.diagnosis.events import Told, events_asked, events_possible, events_told
from smg.commands.diagnosis.finding import Finding, good, warning, wrong
from smg.config import Config
from smg.engine import Engine
from smg.errors import ConfigError, EngineProtocol, EngineTimeout, EngineUnavailable, SmgError, Unimplemented
from smg.template import encode_rendered, load_template
from smg.tokenizer import load_tokenizer, read_folder
from smg.types.job import ChatInput
from smg.worker import Detector, EngineRecord, EngineSpec, listed_engines
from smg.worker.discovery.file import read_workers

__all__ = ["look_at_engines"]

# Tokenizers of a few hundred MB come over the wire.
DESCRIBE_S = 60.0
PROBE_S = 3.0
CHAT = ChatInput(messages=({"role": "user", "content": "Hello!"},))
CALLABLE = "start the engine with its {} server, and check host, port and firewall between here and there"
PORTS = {"http": 80, "https": 443}


async def look_at_engines(config: Config, *, told: Told | None = None) -> list[Finding]:
    """Asks all at once; gives the findings in the order of the configuration. `told`: what a running gateway says of KV events."""
    specs, findings = listed_engines(config), []
    if path := config.discovery.workers_file:
        try:
            specs += await asyncio.to_thread(read_workers, Path(path))
        except (OSError, ValueError) as error:
            findings.append(wrong(f"file {path}", f"it cannot be taken: {error}", "correct it; the gateway reads it again when it changes"))
    if config.discovery.service_discovery:
        findings.append(warning("Kubernetes", "engines that are found there are not looked at", "GET /workers of the gateway lists them"))
    if findings and not specs:
        return findings
    if not specs:
        advice = "name them in engines.worker_urls: grpc://HOST:PORT, or http://HOST:PORT"
        return [warning("engines", "none is named, so every request is refused", advice)]
    with tempfile.TemporaryDirectory(prefix="smg-doctor-") as folder:
        detector = Detector(config, state_dir=Path(folder))
        found = await asyncio.gather(*(_look(spec, config, detector, told) for spec in specs))
    looked = dict.fromkeys(finding for one, _ in found for finding in one)  # what is said of a model is the same for most of its engines
    return [*findings, *looked, *_set_aside([record for _, record in found if record is not None])]


def _set_aside(records: list[EngineRecord]) -> Iterator[Finding]:
    """Tells of engines that get no request, because their model is served by engines of the other kind."""
    in_tokens = {record.model for record in records if not record.relayed}
    for record in records:
        if record.relayed and record.model in in_tokens:
            seen = f"it gets no request: {record.model} is served by engines over gRPC, and a model's engines must be of one kind"
            yield wrong(f"engine {record.url}", seen, "take it out of engines.worker_urls, or name its gRPC address")


async def _look(spec: EngineSpec, config: Config, detector: Detector, told: Told | None) -> tuple[list[Finding], EngineRecord | None]:
    url = spec.url
    subject = f"engine {url}"
    engine: Engine | None = None
    try:
        async with asyncio.timeout(DESCRIBE_S):
            engine, record = await detector.open(EngineRecord(slot=0, epoch=0, id="doctor", **structs.asdict(spec)))
            record = await detector.describe(engine, record)
            serves = await engine.health()
            if told is None:
                events = await events_asked(url, engine, config)
            else:
                events = events_told(url, told, config, possible=events_possible(engine))
    except TimeoutError:
        return [wrong(subject, "it does not say what it is in time", "look at the engine's log: it may still be loading")], None
    except ConfigError as error:
        return [wrong(subject, "; ".join(error.mistakes), "correct its address or certificates")], None
    except SmgError as error:
        return [await _unreachable(subject, url, error)], None
    finally:
        if engine is not None:
            await engine.close()
    findings = [_described(subject, record, serves)]
    if record.relayed:  # the engine tokenizes, and tells nothing of its cache
        return findings, record
    findings.append(await asyncio.to_thread(_look_at_model, f"model {record.model}", record, config))
    return [*findings, events], record


def _described(subject: str, record: EngineRecord, serves: bool) -> Finding:
    length = f", context of {record.context_length} tokens" if record.context_length else ""
    version = f" {record.server.version}" if record.server.version else ""
    kind = " over HTTP" if record.relayed else ""
    seen = f"{record.runtime}{version}{kind} serves {record.model}{length}"
    if not serves:
        return wrong(subject, f"{seen}, and says that it does not serve now", "look at the engine's log: it may be loading, or ill")
    return good(subject, seen)


async def _unreachable(subject: str, url: str, error: SmgError) -> Finding:
    seen = f"{error.message}: {error.detail}" if error.detail else error.message
    if isinstance(error, EngineUnavailable | EngineTimeout):
        return wrong(subject, await asyncio.to_thread(_why, url) or seen, CALLABLE.format(_speaks(url)))
    if isinstance(error, Unimplemented):
        return wrong(subject, seen, "name it in engines.worker_urls, to compute whole requests")
    if isinstance(error, EngineProtocol) and _speaks(url) == "HTTP":
        return wrong(subject, seen, "name the port of a server that speaks OpenAI's API, and no path but a prefix of /v1")
    if isinstance(error, EngineProtocol):
        return wrong(
            subject,
            seen,
            "name the engine's gRPC port, or its HTTP port with http://; engines.backend says the protocol where it is not found out",
        )
    return wrong(subject, seen, "look at the engine's log")


def _speaks(url: str) -> str:
    return "HTTP" if url.startswith("http") else "gRPC"


def _why(url: str) -> str:
    """Says why no connection can be made, or nothing."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return "" if Path(parts.path).exists() else f"{parts.path} does not exist"
    host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
    try:
        socket.create_connection((host, port), timeout=PROBE_S).close()
    except socket.gaierror:
        return f"the name {host} is not known here"
    except TimeoutError:
        return f"{host}:{port} does not answer at all"
    except ConnectionRefusedError:
        return f"nobody listens on {host}:{port}"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return f"{host}:{port} takes connections, and does not speak {_speaks(url)} in time"


def _look_at_model(subject: str, record: EngineRecord, config: Config) -> Finding:
    source = _source(record, config)
    if source is None:
        advice = "name a folder with tokenizer.json and tokenizer_config.json in model.model_path or model.tokenizer_path"
        return wrong(subject, "there is no tokenizer: the engine gives none, and its files are not on this machine", advice)
    try:
        seen = _rendered(source, config)
    except (SmgError, OSError) as error:
        said = "; ".join(error.mistakes) if isinstance(error, ConfigError) else str(getattr(error, "message", error))
        return wrong(
            subject, f"its files in {source} cannot be used: {said}", "see what smg render says; model.chat_template takes another template"
        )
    if not seen:
        return warning(subject, "it has no chat template, so chats are refused and completions served", "name one in model.chat_template")
    return good(subject, seen)


def _source(record: EngineRecord, config: Config) -> Path | None:
    """The same order as the gateway's."""
    model = config.model
    places = (model.tokenizer_path, model.model_path, record.tokenizer_dir, record.info.tokenizer_path, record.info.model_path)
    return next((Path(path) for path in places if path and Path(path).exists()), None)


def _rendered(source: Path, config: Config) -> str:
    """Gives what was seen; empty when there is no template."""
    folder = read_folder(source)
    tokenizer = load_tokenizer(source)
    template = load_template(folder, override=config.model.chat_template or None)
    if template is None:
        return ""
    rendered = template.render(CHAT, now=datetime.datetime.now().astimezone())
    tokens = encode_rendered(tokenizer, rendered, allow_special=config.model.allow_special_tokens_in_text)
    return f"its tokenizer loads and its template renders: a chat of one word is {len(tokens)} tokens"
