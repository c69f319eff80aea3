"""The commands that README.md and the manual page show to operators: each has a place where it is run, and some are run here."""

import contextlib
import importlib
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from smg.cli import main
from smg.sim.processes import Child, free_port, sim_command, wait_http

ROOT = pathlib.Path(__file__).parents[2]
PLACES = (ROOT / "packaging", ROOT / "tests" / "packaging" / "vm")
ANSWER_S = 100


@pytest.fixture(scope="module", autouse=True)
def _paths() -> Iterator[None]:
    """The generator of the page and the boot test are scripts beside others, and no packages."""
    for place in PLACES:
        sys.path.insert(0, str(place))
    yield
    for place in PLACES:
        sys.path.remove(str(place))


@pytest.fixture(scope="module")
def shown() -> ModuleType:
    return importlib.import_module("shown")


@pytest.fixture(scope="module")
def commands(shown: ModuleType) -> list[str]:
    page = importlib.import_module("manual").manual(date="2026-01-02")
    readme = (ROOT / "README.md").read_text()
    return list(dict.fromkeys([*shown.readme_commands(readme), *shown.manual_commands(page)]))


def test_each_has_a_place(shown: ModuleType, commands: list[str]) -> None:
    """A program that is not known here is not run anywhere: give it to PROGRAMS for the boot test, or say in ELSEWHERE who runs it."""
    homeless = [
        command for command in commands if command.split()[0] not in shown.PROGRAMS and not command.startswith(tuple(shown.ELSEWHERE))
    ]
    assert homeless == []
    assert len(list(shown.run_in_guest(commands))) > len(commands) / 2


def test_each_place_is_used(shown: ModuleType, commands: list[str]) -> None:
    assert [beginning for beginning in shown.ELSEWHERE if not any(command.startswith(beginning) for command in commands)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    nonsense --flag  # why\n", ["nonsense --flag"]),
        ("    curl a \\\n        -d b\n\nthen `systemctl stop smg` or `x`\n", ["curl a -d b", "systemctl stop smg"]),
    ],
)
def test_commands_of_the_readme(shown: ModuleType, text: str, expected: list[str]) -> None:
    assert shown.readme_commands(f"## Run it\n{text}\n## Install as a service\n\n## Endpoints\n") == expected


def test_commands_of_the_manual(shown: ModuleType) -> None:
    block = ".PP\n.nf\n.RS\nvLLM          python3 \\-m vllm\nprintf '\\en'\n.RE\n.fi\n"
    page = (
        f'.SH FIRST STEPS\n{block}.B smg check\nand\n.BR "systemctl stop smg" .\n.SH COMMANDS\n.B smg sim\n.SH SECURING IT\n.B no command\n'
    )
    assert shown.manual_commands(page) == ["python3 -m vllm", "printf '\\n'", "smg check", "systemctl stop smg"]


@pytest.mark.parametrize(("scheme", "protocol"), [("grpc", "sglang"), ("http", "openai")])
def test_running_it_by_hand(commands: list[str], scheme: str, protocol: str) -> None:
    """`smg launch` and the request beside it, with engines and a port of this machine in place of those that are shown."""
    [launch] = [command for command in commands if command.startswith("smg launch ") and f"{scheme}://" in command]
    [ask] = [command for command in commands if command.startswith("curl -N localhost:30000/")]
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        for address in re.findall(r"\w+://10\.\S+", launch):
            engine = stack.enter_context(Child("engine", command=sim_command(protocol=protocol, flags=("--speed", "0"))))
            launch = launch.replace(address, engine.wait_ready(within_s=30))
        words = launch.replace(" --port 30000", "").split()[1:]
        quiet = ["--host", "127.0.0.1", "--port", port, "--workers", "1", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0"]
        gateway = stack.enter_context(Child("gateway", command=[sys.executable, "-m", "smg", *words, *quiet]))
        wait_http(gateway, url=f"http://127.0.0.1:{port}/readiness", within_s=30)
        script = ask.replace("30000", port).replace("MODEL", "sim-model")
        done = subprocess.run(["sh", "-c", f"{script} -sS"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("data: [DONE]")


def test_each_launch_that_is_shown_is_run(commands: list[str]) -> None:
    launches = [command for command in commands if command.startswith("smg launch ")]
    assert len(launches) == 2, "give the new one to test_running_it_by_hand"


def test_the_configuration_takes_each_launch_of_the_whole_readme() -> None:
    text = (ROOT / "README.md").read_text().replace("\\\n", "")
    launches = re.findall(r"^    smg launch (.*)$", text, re.MULTILINE)
    assert len(launches) >= 4
    assert [words for words in launches if main(["check", *words.split()]) != 0] == []
