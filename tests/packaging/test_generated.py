"""What is made from the program: manual page, completions, changelog; and the package's scripts."""

import datetime
import importlib
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from smg.cli import COMMANDS
from smg.config.fields import fields

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    """The generators are scripts beside one another, and no package."""
    sys.path.insert(0, str(ROOT / "packaging"))
    yield
    sys.path.remove(str(ROOT / "packaging"))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def page() -> str:
    return str(module("manual").manual(date="2026-01-02"))


def test_manual_has_every_command_and_setting(page: str) -> None:
    plain = page.replace("\\-", "-")
    assert [name for name in COMMANDS if f".B smg {name}\n" not in plain] == []
    for field in fields():
        assert f".B {field.name} = " in plain, field.path
        assert field.variable in plain
        assert all(flag in plain for flag in field.flags)


def test_manual_is_good_roff(page: str, tmp_path: pathlib.Path) -> None:
    groff = shutil.which("groff")
    if not groff:
        pytest.skip("groff is missing: apt-get install groff-base")
    source = tmp_path / "smg.1"
    source.write_text(page)
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww", "-Kutf8", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    plain = re.sub(r".\x08", "", done.stdout)
    assert re.search(r"NAME.*SYNOPSIS.*FIRST STEPS.*COMMANDS.*SETTINGS.*SECURING IT.*UPGRADING.*TROUBLESHOOTING", plain, re.DOTALL)


def test_manual_speaks_of_what_there_is(page: str) -> None:
    """Commands, settings and paths in the hand-written parts are real."""
    text = "\n".join(path.read_text() for path in (ROOT / "packaging" / "man").iterdir()).replace("\\-", "-")
    known = {field.path for field in fields()}
    files = {"engines.toml", "server.crt", "server.key", "tls.crt", "tls.key"}
    assert set(re.findall(r"\b((?:server|tls|engines|model|logging|metrics|health|state|routing)\.[a-z_]+)\b", text)) - known == files
    assert set(re.findall(r"^\.?B? ?smg ([a-z]+)\b", text, re.MULTILINE)) - {"in", *COMMANDS} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_have_every_command_and_flag(shell: str) -> None:
    text = str(getattr(module("completions"), shell)())
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", text), name
    for field in fields():
        for flag in field.flags:
            assert (flag if shell != "fish" else f"-l {flag[2:]}") in text, flag


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_good_shell(shell: str, tmp_path: pathlib.Path) -> None:
    program = shutil.which(shell)
    if not program:
        pytest.skip(f"{shell} is missing")
    script = tmp_path / "script"
    script.write_text(str(getattr(module("completions"), shell)()))
    done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        (["smg", "la"], {"launch"}, {"check"}),
        (["smg", "launch", "--pol"], {"--policy"}, {"--port"}),
        (["smg", "launch", "--policy", "ro"], {"round_robin"}, {"random"}),
        (["smg", "sim", "--proto"], {"--protocol"}, {"--policy"}),
        (["smg", "--wor"], {"--workers", "--worker-urls"}, {"--port"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], absent: set[str], tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script"
    script.write_text(module("completions").bash() + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _smg; printf "%s\\n" "${COMPREPLY[@]}"\n')
    done = subprocess.run(["bash", str(script), *words], capture_output=True, text=True, check=True)
    replies = set(done.stdout.split())
    assert expected <= replies
    assert not absent & replies


def test_changelog_is_debians() -> None:
    unreleased = "## [Unreleased]\n\n### Added\n\n- One thing, told on\n  two lines.\n- Another.\n\n"
    text = f"# Changelog\n\n{unreleased}## [0.1.0] - 2026-01-01\n\n- The first.\n"
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    made = module("changelog").debian_changelog(text, version="0.2.0", moment=moment)
    assert made.startswith("smg (0.2.0) unstable; urgency=medium\n\n  * One thing, told on two lines.\n  * Another.\n\n -- ")
    assert "\nsmg (0.1.0) unstable; urgency=medium\n\n  * The first.\n" in made
    assert "Fri, 02 Jan 2026 03:04:05 +0000" in made


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_good_shell(script: str) -> None:
    done = subprocess.run(["sh", "-n", str(ROOT / "packaging" / "debian" / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
