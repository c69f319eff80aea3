"""The command line as a whole: which command runs, what is imported for it, and how errors leave."""

import subprocess
import sys
import types
from collections.abc import Callable

import pytest

import smg.server
from smg import __version__, cli
from smg.config import Config
from smg.errors import ConfigError, EngineUnavailable


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that a stand-in for the supervisor was started with."""
    seen: list[Config] = []
    supervisor = types.ModuleType("smg.server.supervisor")

    def run(config: Config, *, reload: Callable[[], Config]) -> int:
        assert reload() == config
        seen.append(config)
        return 7

    supervisor.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "smg.server.supervisor", supervisor)
    monkeypatch.setattr(smg.server, "supervisor", supervisor, raising=False)
    return seen


def command(monkeypatch: pytest.MonkeyPatch, function: Callable[[list[str]], int]) -> None:
    """Makes `smg trial` run a function."""
    module = types.ModuleType("trial_command")
    module.run = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trial_command", module)
    monkeypatch.setitem(cli.COMMANDS, "trial", ("trial_command", "run", "a trial"))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=50, check=False)


def imported(*arguments: str) -> set[str]:
    code = f"import sys; from smg.cli import main; main({list(arguments)!r}); print('\\n' + ' '.join(sys.modules))"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"smg {__version__}\n"


@pytest.mark.parametrize("arguments", [["--version-verbose"], ["version", "--verbose"]])
def test_version_of_everything(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    lines = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["smg"] == __version__
    assert lines["granian"] == "2.8.9"
    assert "missing" not in lines.values()


def test_version_imports_next_to_nothing() -> None:
    heavy = {"grpc", "numpy", "granian", "msgspec", "argparse", "asyncio", "jinja2", "tokenizers", "uvloop", "difflib"}
    assert not imported("--version") & heavy


@pytest.mark.parametrize("arguments", [("check",), ("check", "--policy", "random", "--backend", "vllm"), ("launch", "--help"), ("config",)])
def test_reading_the_configuration_imports_nothing_that_must_not_be_forked(arguments: tuple[str, ...]) -> None:
    assert not imported(*arguments) & {"grpc", "numpy", "granian", "tokenizers", "uvloop", "google"}


def test_overview(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert cli.main(words) == 0
        out = capsys.readouterr().out
        assert all(f"  {name} " in out for name in cli.COMMANDS)
        assert all(f"\n\n{title}\n  {name} " in out for name, title in cli.PARTS.items())
    assert cli.main([]) == 2
    assert capsys.readouterr().err == out


@pytest.mark.parametrize(("word", "near"), [("lauch", "launch"), ("strat", "start"), ("tokenise", "tokenize"), ("chek", "check")])
def test_an_unknown_command(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word, "--port", "1"]) == 2
    assert capsys.readouterr().err == f"smg: unknown command {word!r} (did you mean {near}?); smg --help lists them\n"


@pytest.mark.parametrize("words", [["launch"], ["start"], []])
def test_launch_by_any_name(words: list[str], started: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--worker-urls", "grpc://a:1", "grpc://b:1", "--port=5"]) == 7
    [config] = started
    assert config.engines.worker_urls == ("grpc://a:1", "grpc://b:1")
    assert config.server.port == 5
    assert capsys.readouterr().err == ""


def test_launch_warns_and_goes_on(started: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch"]) == 7
    assert capsys.readouterr().err.startswith("smg: warning: engines.worker_urls: no engine is named")
    assert len(started) == 1


def test_launch_says_all_mistakes_and_starts_nothing(started: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "--prot", "5", "--enable-mesh", "--port", "x", "--worker-urls", "host:1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "smg: 4 mistakes",
        "  --prot: unknown flag (did you mean --port?)",
        "  --enable-mesh is not supported by this version",
        "  server.port (--port): expected whole number, got 'x'",
        "  engines.worker_urls (--worker-urls): 'host:1' has no scheme; one of grpc://, grpcs://, unix://, http://, https://",
    ]
    assert started == []


def test_modules_are_started_as_the_original_is() -> None:
    router, direct = python("-m", "smg.launch_router", "--help"), python("-m", "smg", "launch", "--help")
    assert router.returncode == direct.returncode == 0
    assert router.stdout == direct.stdout
    assert "--worker-urls" in router.stdout
    wrong = python("-m", "smg.launch_router", "--hots", "x")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", "smg: --hots: unknown flag (did you mean --host?)\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError(["a", "b"]), 2, "smg: 2 mistakes\n  a\n  b\n"),
        (ConfigError(["a"]), 2, "smg: a\n"),
        (EngineUnavailable("gone"), 1, "smg: gone\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "smg: [Errno 2] No such file or directory: 'x'\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(2), 2, ""),
    ],
)
def test_expected_errors_are_one_message_and_a_code(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    command(monkeypatch, fail)
    assert cli.main(["trial"]) == code
    assert capsys.readouterr().err == message


def test_unexpected_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise ZeroDivisionError

    command(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["trial"])


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    child = subprocess.Popen([sys.executable, "-m", "smg", "config", "--markdown"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=50) == 1
    child.stderr.close()
