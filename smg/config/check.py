"""Checks of the whole tree, beyond what one field's type says: pairs, clashes, addresses, files. Finds everything; raises nothing.

Called by `smg.config.load` after all layers are in, so by `smg check` and at every start and reload.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from smg.config.choices import choices_of
from smg.config.classes import read_priority_classes, read_tenant_limits
from smg.config.control_keys import read_control_key
from smg.config.networks import read_allowance
from smg.config.tree import Config
from smg.errors import ConfigError

__all__ = ["Mistake", "address_fault", "find_mistakes", "find_warnings", "prefill_engines"]

SCHEMES = ("grpc", "grpcs", "unix", "http", "https")
HTTP_SCHEMES = ("http", "https")
WILDCARDS = ("0.0.0.0", "::", "")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
PATH = re.compile(r"/[!-~]*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
# Kubernetes' label keys have a prefix that is a domain, at most; values may be empty.
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}=[A-Za-z0-9._-]{0,63}")
MODEL_ID_FROM = re.compile(r"namespace|(label|annotation):[A-Za-z0-9][A-Za-z0-9._/-]{0,316}")
API_SERVER = re.compile(r"https?://[^/?#@\s]+/?")
NAMESPACE = re.compile(r"[a-z0-9-]{0,63}")
# A UNIX socket's path may have 107 bytes (Linux, sockaddr_un); this much is left to the names of our sockets.
LONGEST_RUNTIME_DIR = 80
LONGEST_ADDRESS = 2048


class Mistake(Struct, frozen=True, kw_only=True):
    """What is wrong, and with which fields; the first of them is the one to change."""

    paths: tuple[str, ...]
    text: str


def find_mistakes(config: Config) -> list[Mistake]:
    """Gives every mistake, in the order of the tree. Looks at the file system; opens no connection."""
    engines = (_worker_urls, _pairs, _discovery, _model_policies)
    finders = (_server, _tls, _control_keys, _tenants, _limit_files, *engines, _model, _aliases, _ports, _folders)
    return [mistake for finder in finders for mistake in finder(config)]


def find_warnings(config: Config) -> list[str]:
    """Gives what is allowed and probably not meant, each with its path."""
    warnings = []
    engines, discovery = config.engines, config.discovery
    named = engines.worker_urls or engines.prefill or engines.decode
    if not (named or discovery.workers_file or discovery.service_discovery):
        warnings.append("engines.worker_urls: no engine is named, so every request will be refused")
    if config.health.disable_check:
        warnings.append("health.disable_check: engines are taken for ready without being asked")
    admission = config.admission
    if admission.max_concurrent_requests <= 0 < admission.rate_limit_tokens_per_second:
        warnings.append("admission.rate_limit_tokens_per_second: does nothing without max_concurrent_requests")
    return warnings


def prefill_engines(words: Iterable[str]) -> list[tuple[str, str]]:
    """Gives address and port of each prefill engine. The port follows its address, as a word of its own or behind a space; none = empty."""
    found: list[tuple[str, str]] = []
    for word in (part for entry in words for part in entry.split()):
        if found and not found[-1][1] and (word.isdecimal() or word == "none"):
            found[-1] = (found[-1][0], word)
        else:
            found.append((word, ""))
    return [(url, "" if port == "none" else port) for url, port in found]


def _mistake(text: str, *paths: str) -> Mistake:
    return Mistake(paths=paths, text=text)


def _server(config: Config) -> Iterator[Mistake]:
    if not config.server.host:
        yield _mistake("is empty; 0.0.0.0 listens everywhere", "server.host")
    for name in config.server.request_id_headers:
        if not TOKEN.fullmatch(name):
            yield _mistake(f"{name!r} is no header name", "server.request_id_headers")
    for origin in config.server.cors_allowed_origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            yield _mistake(f"{origin!r} is no origin; SCHEME://HOST[:PORT] or *", "server.cors_allowed_origins")
    if any(not key.strip() or not key.isascii() or not key.isprintable() for key in config.server.api_key):
        yield _mistake("a key is empty or has characters that a header cannot carry", "server.api_key")
    for name in config.engines.forward_headers:
        if not TOKEN.fullmatch(name):
            yield _mistake(f"{name!r} is no header name", "engines.forward_headers")
    if not PATH.fullmatch(config.health.check_endpoint):
        yield _mistake(f"{config.health.check_endpoint!r} is no path", "health.check_endpoint")
    path = config.server.api_key_file
    if path and (trouble := _unreadable(path)):
        yield _mistake(trouble, "server.api_key_file")
    elif path and not Path(path).read_bytes().strip():
        yield _mistake(f"{path} has no key in it", "server.api_key_file")


def _tls(config: Config) -> Iterator[Mistake]:
    tls = config.tls
    for cert, key in (("cert_path", "key_path"), ("client_cert_path", "client_key_path")):
        if bool(getattr(tls, cert)) != bool(getattr(tls, key)):
            missing, given = (key, cert) if getattr(tls, cert) else (cert, key)
            yield _mistake(f"is missing, and tls.{given} is given", f"tls.{missing}", f"tls.{given}")
    for name in ("cert_path", "key_path", "ca_cert_path", "client_cert_path", "client_key_path"):
        path = getattr(tls, name)
        if path and (trouble := _unreadable(path)):
            yield _mistake(trouble, f"tls.{name}")


def _control_keys(config: Config) -> Iterator[Mistake]:
    where = "server.control_plane_api_keys"
    seen = set()
    for entry in config.server.control_plane_api_keys:
        try:
            known = read_control_key(entry)
        except ValueError as error:
            yield _mistake(str(error), where)
            continue
        if known.key in seen:
            yield _mistake(f"the key of {known.id!r} is given twice", where)
        seen.add(known.key)


def _tenants(config: Config) -> Iterator[Mistake]:
    tenants = config.tenants
    seen = set()
    for entry in tenants.api_key:
        tenant, colon, key = (part.strip() for part in entry.partition(":"))
        if not (tenant and colon and key) or not entry.isascii() or not entry.isprintable():
            yield _mistake("an entry is not TENANT:KEY, or has characters that a header cannot carry", "tenants.api_key")
        elif key in seen or key in config.server.api_key:
            yield _mistake(f"the key of {tenant!r} is given twice", "tenants.api_key", "server.api_key")
        seen.add(key)
    if not TOKEN.fullmatch(tenants.header_name):
        yield _mistake(f"{tenants.header_name!r} is no header name", "tenants.header_name")
    if tenants.rate_limit_enabled and not tenants.rate_limit_config:
        yield _mistake("is missing, and tenants.rate_limit_enabled is given", "tenants.rate_limit_config", "tenants.rate_limit_enabled")
    scheme = tenants.rate_limit_url.partition("://")[0]
    if tenants.rate_limit_url and scheme not in ("redis", "rediss", "unix"):
        yield _mistake("has an unknown scheme; one of redis://, rediss://, unix://", "tenants.rate_limit_url")


def _limit_files(config: Config) -> Iterator[Mistake]:
    files = (
        ("priority_scheduler.config", config.priority_scheduler.config, read_priority_classes),
        ("tenants.rate_limit_config", config.tenants.rate_limit_config, read_tenant_limits),
    )
    for path, file, read in files:
        if file:
            try:
                read(file)
            except ConfigError as error:
                yield _mistake("; ".join(error.mistakes), path)


def _worker_urls(config: Config) -> Iterator[Mistake]:
    urls = config.engines.worker_urls
    for index, url in enumerate(urls):
        trouble = "is given twice" if url in urls[:index] else _bad_url(url)
        if trouble:
            yield _mistake(f"{_without_password(url)!r} {trouble}", "engines.worker_urls")
    for entry in config.engines.worker_url_allow:
        try:
            read_allowance(entry)
        except ValueError as error:
            yield _mistake(f"{entry!r}: {error}", "engines.worker_url_allow")


def _discovery(config: Config) -> Iterator[Mistake]:
    settings = config.discovery
    names = ("selector", "prefill_selector", "decode_selector")
    for name in names:
        for entry in getattr(settings, name):
            if not LABEL.fullmatch(entry):
                yield _mistake(f"{entry!r} is not KEY=VALUE as labels are", f"discovery.{name}")
    if settings.service_discovery and not any(getattr(settings, name) for name in names):
        yield _mistake("needs a selector, for not every pod is an engine", "discovery.service_discovery", "discovery.selector")
    if settings.model_id_from and not MODEL_ID_FROM.fullmatch(settings.model_id_from):
        yield _mistake(f"{settings.model_id_from!r} is not namespace, label:KEY or annotation:KEY", "discovery.model_id_from")
    if settings.kubernetes_api and not API_SERVER.fullmatch(settings.kubernetes_api):
        yield _mistake(f"{settings.kubernetes_api!r} is not http(s)://HOST[:PORT]", "discovery.kubernetes_api")
    if not NAMESPACE.fullmatch(settings.service_discovery_namespace):
        yield _mistake(f"{settings.service_discovery_namespace!r} is no namespace", "discovery.service_discovery_namespace")


def _model_policies(config: Config) -> Iterator[Mistake]:
    allowed = choices_of("policy") if config.routing.model_policy else []
    seen: set[str] = set()
    for entry in config.routing.model_policy:
        model, equals, policy = entry.rpartition("=")
        if not (equals and model.strip()):
            yield _mistake(f"{entry!r} is not MODEL=POLICY", "routing.model_policy")
        elif policy not in allowed:
            yield _mistake(f"{policy!r} is not one of {', '.join(allowed)}", "routing.model_policy")
        elif model in seen:
            yield _mistake(f"the model {model!r} has two policies", "routing.model_policy")
        seen.add(model)
    if config.routing.dp_minimum_tokens_scheduler and not config.engines.dp_aware:
        yield _mistake("needs engines.dp_aware", "routing.dp_minimum_tokens_scheduler", "engines.dp_aware")


def address_fault(url: str) -> str:
    """Says what is wrong with an engine's address, wherever it comes from; or nothing."""
    return _bad_url(url)


def _pairs(config: Config) -> Iterator[Mistake]:
    engines = config.engines
    prefill = prefill_engines(engines.prefill)
    for _, port in prefill:
        if port and not 0 < int(port) < 65536:
            yield _mistake(f"{port} is no port", "engines.prefill")
    known = [*engines.worker_urls]
    for path, urls in (("engines.prefill", [url for url, _ in prefill]), ("engines.decode", list(engines.decode))):
        for url in urls:
            trouble = "is given twice" if url in known else _bad_url(url)
            known.append(url)
            if trouble:
                yield _mistake(f"{_without_password(url)!r} {trouble}", path)
    if len({urlsplit(url).scheme in HTTP_SCHEMES for url in (*(url for url, _ in prefill), *engines.decode)}) > 1:
        yield _mistake("has engines over HTTP and over gRPC, of which no two can compute one request", "engines.decode", "engines.prefill")
    if prefill and not engines.decode:
        yield _mistake("is missing: without a decode engine nothing can be answered", "engines.decode", "engines.prefill")
    if engines.decode and not prefill:
        yield _mistake("is missing: without a prefill engine nothing can be answered", "engines.prefill", "engines.decode")
    if engines.pd_disaggregation and not prefill and not engines.decode:
        yield _mistake("is missing: --pd-disaggregation needs --prefill and --decode", "engines.prefill", "engines.pd_disaggregation")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url)


def _bad_url(url: str) -> str:
    """Says what is wrong with an engine's address, or nothing."""
    if len(url) > LONGEST_ADDRESS:
        return f"is longer than {LONGEST_ADDRESS} characters"
    if not url.isprintable():  # urlsplit drops tabs and line ends, and lets other controls pass
        return "has characters that cannot be printed"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme and not url.startswith(f"{parts.scheme}:"):
        return "has a scheme in capitals"  # those who tell engines' kinds apart look for small letters
    if "://" not in url:
        return f"has no scheme; one of {', '.join(scheme + '://' for scheme in SCHEMES)}"
    if parts.scheme not in SCHEMES:
        return f"has an unknown scheme; one of {', '.join(scheme + '://' for scheme in SCHEMES)}"
    if parts.scheme == "unix":
        return "" if not parts.netloc and parts.path.startswith("/") else "needs an absolute path: unix:///PATH"
    return _bad_network_url(parts, port)


def _bad_network_url(parts: SplitResult, port: int | None) -> str:
    if not parts.hostname or any(character.isspace() for character in parts.netloc):
        return "has no host"
    if not parts.geturl().isascii() or " " in parts.path:  # it is a line of requests; the host of a name in letters is its xn-- form
        return "has spaces, or characters outside ASCII"
    if "@" in parts.netloc:
        return "carries a user or password, which is not supported"
    if parts.query or parts.fragment:
        return "has a query or fragment, which an address cannot have"
    if parts.scheme in HTTP_SCHEMES:
        if port == 0:
            return "has no port"
        is_api = re.search(r"/v1/?$", parts.path) is not None
        return "ends with /v1, which the paths of requests begin with: leave it out" if is_api else ""
    if not port:
        return "has no port"
    return "has a path, which gRPC addresses cannot have" if parts.path not in ("", "/") else ""


def _model(config: Config) -> Iterator[Mistake]:
    model = config.model
    if model.model_path and not Path(model.model_path).is_dir():
        yield _mistake(f"{model.model_path} is no folder here; models are not fetched from a hub", "model.model_path")
    path = model.tokenizer_path
    if path and not Path(path).is_dir() and (trouble := _unreadable(path)):
        yield _mistake(trouble, "model.tokenizer_path")
    if model.chat_template and (trouble := _unreadable(model.chat_template)):
        yield _mistake(trouble, "model.chat_template")


def _aliases(config: Config) -> Iterator[Mistake]:
    where = "model.model_alias"
    seen: dict[str, str] = {}
    for entry in config.model.model_alias:
        alias, equals, name = entry.partition("=")
        if not (equals and alias.strip() and name.strip()):
            yield _mistake(f"{entry!r} is not ALIAS=MODEL", where)
        elif alias == name:
            yield _mistake(f"{entry!r} names itself", where)
        elif alias in seen:
            yield _mistake(f"the alias {alias!r} is given twice", where)
        else:
            seen[alias] = name
    for alias, name in seen.items():
        if name in seen:
            yield _mistake(f"the alias {alias!r} stands for {name!r}, which is an alias itself", where)


def _ports(config: Config) -> Iterator[Mistake]:
    server, metrics = config.server, config.metrics
    overlap = server.host == metrics.prometheus_host or server.host in WILDCARDS or metrics.prometheus_host in WILDCARDS
    if metrics.health_check_port and metrics.health_check_port in (server.port, metrics.prometheus_port):
        yield _mistake(f"{metrics.health_check_port} is another listener's port too", "metrics.health_check_port")
    if server.port and server.port == metrics.prometheus_port and overlap:
        yield _mistake(f"{server.port} is the port of the server too", "metrics.prometheus_port", "server.port")


def _folders(config: Config) -> Iterator[Mistake]:
    folders = (("logging.log_dir", config.logging.log_dir), ("state.state_dir", config.state.state_dir))
    for path, folder in (*folders, ("state.runtime_dir", config.state.runtime_dir)):
        if folder and (trouble := _unusable(Path(folder))):
            yield _mistake(trouble, path)
    if len(os.fsencode(config.state.runtime_dir)) > LONGEST_RUNTIME_DIR:
        yield _mistake(f"is longer than the {LONGEST_RUNTIME_DIR} bytes that leave room for a socket's name", "state.runtime_dir")


def _unreadable(path: str) -> str:
    """Says why a file cannot be read, or nothing."""
    if not os.path.exists(path):
        return f"{path} does not exist"
    if not os.path.isfile(path):
        return f"{path} is no file"
    return "" if os.access(path, os.R_OK) else f"{path} cannot be read by this user"


def _unusable(folder: Path) -> str:
    """Says why a folder cannot be written to, nor made; or nothing."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        return f"{place} is no folder"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to by this user"
