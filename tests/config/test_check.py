"""Checks of the whole tree: one mistake each, and a tree with none."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from smg.config import Config
from smg.config.check import find_mistakes, find_warnings, prefill_engines


def tree(**sections: dict[str, object]) -> Config:
    changed = {name: structs.replace(getattr(Config(), name), **values) for name, values in sections.items()}
    return structs.replace(Config(), **changed)


def found(**sections: dict[str, object]) -> list[tuple[str, str]]:
    return [(mistake.paths[0], mistake.text) for mistake in find_mistakes(tree(**sections))]


def test_defaults_are_right() -> None:
    assert found() == []


@pytest.mark.parametrize(
    "url",
    ["grpc://127.0.0.1:1", "grpcs://host:443", "grpc://[::1]:50051", "unix:///run/engine.sock"],
)
def test_right_urls(url: str) -> None:
    assert found(engines={"worker_urls": (url,)}) == []


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("host:1", "has no scheme"),
        ("tcp://host:1", "has an unknown scheme"),
        ("grpc://host", "has no port"),
        ("grpc://host:0", "has no port"),
        ("grpc://host:99999", "is no address: Port out of range 0-65535"),
        ("grpc://host:x", "is no address: Port could not be cast"),
        ("grpc://:1", "has no host"),
        ("grpc://a b:1", "has no host"),
        ("grpc://host:1/path", "has a path"),
        ("grpc://host:1?x=1", "has a query"),
        ("grpc://[::1", "is no address"),
        ("unix://host/path", "needs an absolute path"),
        ("unix://", "needs an absolute path"),
        ("", "has no scheme"),
    ],
)
def test_wrong_urls(url: str, text: str) -> None:
    [(path, message)] = found(engines={"worker_urls": (url, "grpc://good:1")})
    assert path == "engines.worker_urls"
    assert message.startswith(f"{url!r} {text}")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    [(_, message)] = found(engines={"worker_urls": ("grpcs://user:hunter2@host:1",)})
    assert message == "'grpcs://***@host:1' carries a user or password, which is not supported"


@pytest.mark.parametrize("url", ["http://a:8000", "http://a", "https://a.example/engine-1/", "https://[::1]:443"])
def test_http_engines(url: str) -> None:
    assert found(engines={"worker_urls": (url,)}) == []


@pytest.mark.parametrize(
    ("url", "trouble"),
    [
        ("http://a:8000/v1", "ends with /v1"),
        ("http://a/x/v1/", "ends with /v1"),
        ("http://", "has no host"),
        ("http://a?b=c", "has a query"),
        ("http://a:0", "has no port"),
        ("HTTP://a:8000", "scheme in capitals"),
        ("http://a/b c", "has spaces"),
        ("http://a/é", "outside ASCII"),
        ("http://é:1", "outside ASCII"),
        ("http://a/\r\nx: y", "cannot be printed"),
        ("http://a/\x00", "cannot be printed"),
        ("http://a/" + 2048 * "b", "is longer than"),
    ],
)
def test_what_is_no_address_of_an_http_engine(url: str, trouble: str) -> None:
    [(path, message)] = found(engines={"worker_urls": (url,)})
    assert path == "engines.worker_urls"
    assert trouble in message


def test_two_engines_that_compute_one_request_are_of_one_kind() -> None:
    mistakes = found(engines={"pd_disaggregation": True, "prefill": ("http://a:1",), "decode": ("grpc://b:1",)})
    assert [(path, "over HTTP and over gRPC" in message) for path, message in mistakes] == [("engines.decode", True)]


def test_headers_and_path_for_http_engines() -> None:
    assert found(engines={"forward_headers": ("x-a", "authorization")}, health={"check_endpoint": "/up?a=b"}) == []
    assert [path for path, _ in found(engines={"forward_headers": ("a b",)}, health={"check_endpoint": "up"})] == [
        "engines.forward_headers",
        "health.check_endpoint",
    ]


def test_a_url_given_twice() -> None:
    [(_, message)] = found(engines={"worker_urls": ("grpc://a:1", "grpc://b:1", "grpc://a:1")})
    assert message == "'grpc://a:1' is given twice"


def test_tls_pairs_and_files(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.write_text("x")
    good = str(file)
    assert found(tls={"cert_path": good, "key_path": good, "ca_cert_path": good}) == []
    assert found(tls={"key_path": good}) == [("tls.cert_path", "is missing, and tls.key_path is given")]
    assert found(tls={"client_cert_path": good}) == [("tls.client_key_path", "is missing, and tls.client_cert_path is given")]
    assert found(tls={"cert_path": good, "key_path": str(tmp_path)}) == [("tls.key_path", f"{tmp_path} is no file")]


@pytest.mark.parametrize(
    ("host", "metrics", "clash"),
    [("0.0.0.0", "0.0.0.0", True), ("127.0.0.1", "0.0.0.0", True), ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "10.0.0.1", False)],
)
def test_ports_clash_only_where_the_addresses_meet(host: str, metrics: str, clash: bool) -> None:
    mistakes = found(server={"host": host, "port": 9}, metrics={"prometheus_host": metrics, "prometheus_port": 9})
    assert mistakes == ([("metrics.prometheus_port", "9 is the port of the server too")] if clash else [])


def test_two_free_ports_do_not_clash() -> None:
    assert found(server={"port": 0}, metrics={"prometheus_port": 0}) == []


def test_the_port_of_probes_is_its_own() -> None:
    for server, metrics in ((9, 8), (8, 9)):
        mistakes = found(server={"port": server}, metrics={"prometheus_port": metrics, "health_check_port": 9})
        assert mistakes == [("metrics.health_check_port", "9 is another listener's port too")]


def test_api_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n")
    assert found(server={"api_key_file": str(file)}) == [("server.api_key_file", f"{file} has no key in it")]
    file.write_text("key\n")
    assert found(server={"api_key_file": str(file), "api_key": ("a",)}) == []
    missing = str(tmp_path / "missing")
    assert found(server={"api_key_file": missing}) == [("server.api_key_file", f"{missing} does not exist")]
    for key in ("", " ", "a\nb", "schlüssel"):
        [(path, message)] = found(server={"api_key": (key,)})
        assert path == "server.api_key"
        assert key not in message or not key.strip()


def test_files_and_folders_that_this_user_may_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("key")
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may do everything
    assert found(server={"api_key_file": str(file)}) == [("server.api_key_file", f"{file} cannot be read by this user")]
    assert found(logging={"log_dir": str(tmp_path)}) == [("logging.log_dir", f"{tmp_path} cannot be written to by this user")]


def test_headers_and_origins() -> None:
    assert found(server={"request_id_headers": ("x id",)}) == [("server.request_id_headers", "'x id' is no header name")]
    assert found(server={"cors_allowed_origins": ("*", "https://a.example:8443")}) == []
    [(path, _)] = found(server={"cors_allowed_origins": ("https://a.example/path",)})
    assert path == "server.cors_allowed_origins"


def test_model_files(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    assert found(model={"model_path": str(tmp_path), "tokenizer_path": str(file), "chat_template": str(file)}) == []
    mistakes = found(model={"model_path": "meta-llama/Llama-3", "tokenizer_path": "x", "chat_template": str(tmp_path)})
    assert mistakes == [
        ("model.model_path", "meta-llama/Llama-3 is no folder here; models are not fetched from a hub"),
        ("model.tokenizer_path", "x does not exist"),
        ("model.chat_template", f"{tmp_path} is no file"),
    ]


def test_aliases() -> None:
    assert found(model={"model_alias": ("gpt-4=qwen", "gpt-4o=qwen", "x=a=b")}) == []
    texts = [text for _, text in found(model={"model_alias": ("a", "=b", "b=", "c=c", "d=m", "d=n", "e=d")})]
    assert texts == [
        "'a' is not ALIAS=MODEL",
        "'=b' is not ALIAS=MODEL",
        "'b=' is not ALIAS=MODEL",
        "'c=c' names itself",
        "the alias 'd' is given twice",
        "the alias 'e' stands for 'd', which is an alias itself",
    ]


def test_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert found(state={"state_dir": str(tmp_path / "new" / "deep")}, logging={"log_dir": str(tmp_path)}) == []
    assert found(logging={"log_dir": str(file / "below")}) == [("logging.log_dir", f"{file} is no folder")]
    [(path, message)] = found(state={"runtime_dir": str(tmp_path / ("x" * 100))})
    assert path == "state.runtime_dir"
    assert "longer than the 80 bytes" in message


def test_warnings() -> None:
    assert find_warnings(tree(engines={"worker_urls": ("grpc://a:1",)})) == []
    warned = find_warnings(tree(health={"disable_check": True}))
    assert [warning.split(":")[0] for warning in warned] == ["engines.worker_urls", "health.disable_check"]


def test_prefill_and_decode_engines() -> None:
    words = ("grpc://a:1", "8998", "grpc://b:1 none", "grpc://c:1")
    assert prefill_engines(words) == [("grpc://a:1", "8998"), ("grpc://b:1", ""), ("grpc://c:1", "")]
    assert found(engines={"prefill": words, "decode": ("grpc://d:1",)}) == []


@pytest.mark.parametrize(
    ("engines", "path"),
    [
        ({"prefill": ("grpc://a:1",)}, "engines.decode"),
        ({"decode": ("grpc://a:1",)}, "engines.prefill"),
        ({"pd_disaggregation": True}, "engines.prefill"),
        ({"prefill": ("grpc://a:1", "99999"), "decode": ("grpc://b:1",)}, "engines.prefill"),
        ({"prefill": ("grpc://a",), "decode": ("grpc://b:1",)}, "engines.prefill"),
        ({"prefill": ("grpc://a:1",), "decode": ("grpc://a:1",)}, "engines.decode"),
        ({"worker_urls": ("grpc://a:1",), "prefill": ("grpc://a:1",), "decode": ("grpc://b:1",)}, "engines.prefill"),
    ],
)
def test_parts_that_do_not_make_a_whole(engines: dict[str, object], path: str) -> None:
    assert [where for where, _ in found(engines=engines)] == [path]


def test_discovery() -> None:
    assert found(discovery={"service_discovery": True, "decode_selector": ("example.org/app=engine", "tier=")}) == []
    assert found(discovery={"service_discovery": True}) == [
        ("discovery.service_discovery", "needs a selector, for not every pod is an engine")
    ]
    for name in ("selector", "prefill_selector", "decode_selector"):
        for entry in ("app", "=x", "a=b,c=d", "a=b c"):
            assert found(discovery={name: (entry,)}) == [(f"discovery.{name}", f"{entry!r} is not KEY=VALUE as labels are")]
    wrong = {"model_id_from": "pod", "kubernetes_api": "example.org", "service_discovery_namespace": "a/../b"}
    for name, value in wrong.items():
        [(path, text)] = found(discovery={name: value})
        assert path == f"discovery.{name}"
        assert text.startswith(repr(value))
    assert not any("no engine" in warning for warning in find_warnings(tree(discovery={"workers_file": "x"})))


def test_policies_of_models() -> None:
    assert found(routing={"model_policy": ("org/m=random", "a=b=cache_aware")}) == []
    cases = {"random": "is not MODEL=POLICY", "m=no": "is not one of", "=random": "is not MODEL=POLICY"}
    for entry, text in cases.items():
        [(path, message)] = found(routing={"model_policy": (entry,)})
        assert path == "routing.model_policy"
        assert text in message
    [(_, message)] = found(routing={"model_policy": ("m=random", "m=round_robin")})
    assert message == "the model 'm' has two policies"
    assert found(routing={"dp_minimum_tokens_scheduler": True})[0][0] == "routing.dp_minimum_tokens_scheduler"


@pytest.mark.parametrize(
    ("tenants", "path", "text"),
    [
        ({"api_key": ("a",)}, "tenants.api_key", "is not TENANT:KEY"),
        ({"api_key": ("a: ",)}, "tenants.api_key", "is not TENANT:KEY"),
        ({"api_key": ("a:k", "b:k")}, "tenants.api_key", "is given twice"),
        ({"header_name": "a b"}, "tenants.header_name", "is no header name"),
        ({"rate_limit_enabled": True}, "tenants.rate_limit_config", "is missing"),
        ({"rate_limit_config": "/nowhere"}, "tenants.rate_limit_config", "No such file"),
        ({"rate_limit_url": "http://a"}, "tenants.rate_limit_url", "unknown scheme"),
    ],
)
def test_mistakes_of_tenants(tenants: dict[str, object], path: str, text: str) -> None:
    [(where, message)] = found(tenants=tenants)
    assert where == path
    assert text in message


def test_a_rate_without_seats_is_warned_of() -> None:
    warned = find_warnings(tree(engines={"worker_urls": ("grpc://a:1",)}, admission={"rate_limit_tokens_per_second": 5}))
    assert [warning.split(":")[0] for warning in warned] == ["admission.rate_limit_tokens_per_second"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (("a:b:admin",), "an entry is not ID:NAME:ROLE:KEY, or has characters that a header cannot carry"),
        (("a:b:admin: ",), "an entry is not ID:NAME:ROLE:KEY, or has characters that a header cannot carry"),
        (("a:b:root:secret",), "the role of 'a' is not one of admin, user"),
        (("a:b:admin:secret", "c:d:user:secret"), "the key of 'c' is given twice"),
    ],
)
def test_keys_of_the_control_plane(entries: tuple[str, ...], text: str) -> None:
    assert found(server={"control_plane_api_keys": entries}) == [("server.control_plane_api_keys", text)]
    assert found(server={"control_plane_api_keys": ("a:b:admin:x:y", "c:d:user:z")}) == []


def test_where_engines_may_be() -> None:
    assert found(engines={"worker_url_allow": ("10.0.0.0/8", "grpc://", "http://[fd00::]/8")}) == []
    [(path, message)] = found(engines={"worker_url_allow": ("10.0.0.0/8", "gopher://")})
    assert path == "engines.worker_url_allow"
    assert message.startswith("'gopher://': 'gopher' is not one of grpc")
