"""Files, environment and flags together: precedence, origins, and all mistakes in one error."""

from pathlib import Path

import pytest

from smg.config import Config
from smg.config.load import Loaded, load
from smg.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(*arguments: str, environment: dict[str, str] | None = None, default: Path = Path("/nonexistent")) -> Loaded:
    return load(arguments, environment=environment or {}, default_file=default)


def mistakes(*arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*arguments, environment=environment)
    return caught.value.mistakes


def test_nothing_said_gives_the_defaults_and_a_warning() -> None:
    loaded = read()
    assert loaded.config == Config()
    assert loaded.origins == {}
    assert loaded.warnings == ("engines.worker_urls: no engine is named, so every request will be refused",)


def test_file_below_environment_below_flags(tmp_path: Path) -> None:
    file = write(tmp_path / "smg.toml", '[server]\nhost = "file"\nport = 1\nworkers = 1\n[engines]\nworker_urls = ["grpc://file:1"]')
    environment = {"SMG_SERVER_PORT": "2", "SMG_SERVER_WORKERS": "2", "SMG_ENGINES_WORKER_URLS": "grpc://a:1, grpc://b:1,"}
    loaded = read("--config", str(file), "--workers", "3", environment=environment)
    server = loaded.config.server
    assert (server.host, server.port, server.workers) == ("file", 2, 3)
    assert loaded.config.engines.worker_urls == ("grpc://a:1", "grpc://b:1")
    assert loaded.origins["server.host"] == str(file)
    assert loaded.origins["server.port"] == "SMG_SERVER_PORT"
    assert loaded.origins["server.workers"] == "--workers"
    assert loaded.warnings == ()


def test_conf_d_is_read_after_its_file_in_the_order_of_names(tmp_path: Path) -> None:
    file = write(tmp_path / "smg.toml", '[server]\nhost = "main"\nport = 1\nworkers = 1')
    second = write(tmp_path / "conf.d" / "20.toml", "[server]\nworkers = 3")
    first = write(tmp_path / "conf.d" / "10.toml", "[server]\nport = 2\nworkers = 2")
    write(tmp_path / "conf.d" / "30.toml.bak", "not read")
    loaded = read("--config", str(file))
    assert (loaded.config.server.host, loaded.config.server.port, loaded.config.server.workers) == ("main", 2, 3)
    assert loaded.files == (file, first, second)


def test_the_default_file_is_read_only_when_no_other_is_named(tmp_path: Path) -> None:
    default = write(tmp_path / "etc" / "smg.toml", "[server]\nport = 5\nworkers = 5")
    named = write(tmp_path / "own" / "smg.toml", "[server]\nport = 6")
    assert read(default=default).config.server.port == 5
    loaded = read("--config", str(named), default=default)
    assert (loaded.config.server.port, loaded.config.server.workers) == (6, Config().server.workers)


def test_several_files_the_later_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one.toml", "[server]\nport = 1\nworkers = 1")
    two = write(tmp_path / "two.toml", "[server]\nport = 2")
    loaded = read("--config", str(one), "--config", str(two))
    assert (loaded.config.server.port, loaded.config.server.workers) == (2, 1)


def test_mistakes_of_all_layers_come_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "smg.toml", '[server]\nprot = 1\nport = "x"\n[sever]\na = 1\n[logging]\nlog_level = "loud"')
    found = mistakes(
        "--config",
        str(file),
        "--polcy",
        "random",
        "--tls-cert-path",
        "/nonexistent/cert.pem",
        "--prometheus-port",
        "-1",
        environment={"SMG_SERVER_PROT": "1", "SMG_HEALTH_CHECK_TIMEOUT_S": "0"},
    )
    assert found == [
        f"server.prot ({file}): unknown key (did you mean port?)",
        f"server.port ({file}): expected whole number, got 'x'",
        f"sever ({file}): unknown section (did you mean server?)",
        f"logging.log_level ({file}): 'loud' is not one of debug, info, warn, error",
        "SMG_SERVER_PROT: unknown environment variable (did you mean SMG_SERVER_PORT?)",
        "health.check_timeout_s (SMG_HEALTH_CHECK_TIMEOUT_S): expected number > 0.0, got '0'",
        "--polcy: unknown flag (did you mean --policy?)",
        "metrics.prometheus_port (--prometheus-port): expected whole number >= 0, got '-1'",
        "tls.key_path: is missing, and tls.cert_path is given",
        "tls.cert_path (--tls-cert-path): /nonexistent/cert.pem does not exist",
    ]


def test_a_lower_layer_is_checked_even_when_a_higher_one_wins() -> None:
    found = mistakes("--port", "1", environment={"SMG_SERVER_PORT": "x"})
    assert found == ["server.port (SMG_SERVER_PORT): expected whole number, got 'x'"]


def test_checks_of_the_whole_leave_fields_alone_that_are_wrong_already() -> None:
    found = mistakes("--prometheus-port", "x", "--port", "29000")
    assert found == ["metrics.prometheus_port (--prometheus-port): expected whole number, got 'x'"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = write(tmp_path / "broken" / "smg.toml", "[server\n")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff")
    missing = tmp_path / "missing.toml"
    found = mistakes("--config", str(missing), "--config", str(broken), "--config", str(binary), "--config", str(tmp_path))
    assert found[0] == f"{missing}: No such file or directory"
    assert found[1].startswith(f"{broken}: Expected ']'")
    assert found[2].startswith(f"{binary}: 'utf-8' codec can't decode")
    assert found[3] == f"{tmp_path}: Is a directory"


def test_keys_in_the_wrong_place_are_told_where_they_belong(tmp_path: Path) -> None:
    file = write(tmp_path / "smg.toml", 'port = 1\nrouting = "x"\n[server]\nprometheus_port = 1\nmax_payload_size = 5')
    assert mistakes("--config", str(file)) == [
        f"port ({file}): unknown section (did you mean server.port?)",
        f"routing ({file}): expected a table, [routing]",
        f"server.prometheus_port ({file}): unknown key (did you mean metrics.prometheus_port?)",
        f"server.max_payload_size ({file}): unknown key (did you mean max_payload_bytes?)",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SMG_NO_EXT", "1"),
        ("SMG_SHARED", "/somewhere"),
        ("SMG_SERVICE_HOST", "10.0.0.1"),
        ("SMG_SERVICE_PORT_HTTP", "80"),
        ("SMG_SERVER_SERVICE_PORT", "80"),
        ("SMG_PORT_30000_TCP_ADDR", "10.0.0.1"),
        ("SMG_SERVER_PORT", "tcp://10.0.0.1:80"),
        ("SMG_SOMETHING", "else"),
    ],
)
def test_variables_that_are_no_settings_are_left_alone(name: str, value: str) -> None:
    assert read(environment={name: value}).config == Config()


def test_a_slip_in_the_section_of_a_variable_is_found() -> None:
    assert mistakes(environment={"SMG_SEVER_PORT": "1"}) == ["SMG_SEVER_PORT: unknown environment variable (did you mean SMG_SERVER_PORT?)"]


def test_help_reads_nothing_else(tmp_path: Path) -> None:
    loaded = read("--help", "--config", str(tmp_path / "missing.toml"), environment={"SMG_SERVER_PORT": "x"})
    assert loaded.help
