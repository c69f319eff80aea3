"""The commands that README.md and the manual page show to operators, and where each is run.

In: the texts. Out: command lines as one would type them, gpu1 and NAME still in them. `tests/packaging/test_shown.py` sees that each has a
place, the boot test runs those that belong to an installed system (`run_in_guest`), and the rest runs where `ELSEWHERE` says.
"""

import re
from collections.abc import Iterator

__all__ = ["ELSEWHERE", "PROGRAMS", "manual_commands", "readme_commands", "run_in_guest"]

SECTIONS = ("Run it", "Install as a service")
PROGRAMS = (
    "apt",
    "curl",
    "install",
    "journalctl",
    "make",
    "man",
    "pip",
    "printf",
    "python",
    "python3",
    "smg",
    "sudo",
    "systemctl",
    "systemd-id128",
)
# By their beginning: who runs what needs no installed system, or cannot be run without more than one machine.
ELSEWHERE = {
    "make build": "every run of CI",
    "make deb": "CI",
    "make test-vm": "this is it",
    "pip install .": "packaging/make_binary.sh installs the sources with pip",
    "smg sim": "tests/sim",
    "smg launch": "tests/packaging/test_shown.py, in front of simulated engines",
    "curl -N localhost:30000/": "tests/packaging/test_shown.py",
    "python -m smg.launch_router": "tests/cli",
    "man smg": "tests/packaging/test_generated.py renders it",
    "python3 -m sglang.launch_server": "an engine, which needs a GPU",
    "python3 -m vllm.entrypoints.grpc_server": "an engine, which needs a GPU",
    "python3 -m tensorrt_llm.commands.serve": "an engine, which needs a GPU",
    "smg render": "tests/cli, with messages",
    "smg parse": "tests/parser/test_command.py, with an output",
}


def readme_commands(text: str) -> list[str]:
    """Gives those of the sections for operators: indented blocks, and what stands between backquotes."""
    found: list[str] = []
    for section in SECTIONS:
        [body] = re.findall(rf"^## {section}\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
        for block in re.findall(r"(?:^    .*\n)+", body, re.MULTILINE):
            found += [_uncommented(line) for line in re.sub(r"\\\n\s*", "", block).splitlines()]  # a backslash: it goes on in the next line
        prose = re.sub(r"^    .*\n", "", body, flags=re.MULTILINE)
        found += [span for span in re.findall(r"`([^`]+)`", prose) if _is_command(span)]
    return list(dict.fromkeys(found))


def manual_commands(page: str) -> list[str]:
    """Gives those of its blocks, and what is bold in its text."""
    page = page.replace("\\-", "-").replace("\\e", "\\").replace("\\(aq", "'")
    blocks = re.findall(r"^\.nf\n(?:\.RS\n)?(.*?)^\.(?:RE|fi)\n", page, re.DOTALL | re.MULTILINE)
    found = [re.split(r" {2,}", line)[-1].strip() for block in blocks for line in block.splitlines() if line and line[0] != "."]
    written_by_hand = re.sub(r"^\.SH COMMANDS\n.*?(?=^\.SH SECURING)", "", page, flags=re.DOTALL | re.MULTILINE)
    bold = re.findall(r"^\.B (.*)$|^\.BR \"([^\"]*)\"", written_by_hand.partition(".SH FIRST STEPS")[2], re.MULTILINE)
    found += [words for pair in bold for words in pair if _is_command(words)]
    return list(dict.fromkeys(found))


def _uncommented(line: str) -> str:
    return re.sub(r"\s+# .*$", "", line).strip()


def _is_command(words: str) -> bool:
    """A program's name alone is no command."""
    first, _, rest = words.partition(" ")
    return first in PROGRAMS and bool(rest)


def run_in_guest(commands: list[str]) -> Iterator[tuple[str, str]]:
    """Gives those that an installed system runs, each with the script for it: this machine in the engine's place, an instance `two`."""
    for command in commands:
        if command.startswith(tuple(ELSEWHERE)):
            continue
        script = command.replace("gpu1", "127.0.0.1").replace("NAME", "two")
        if "systemctl edit" in script:  # wants a terminal, and somebody who types
            script = f"SYSTEMD_EDITOR=true script -qec '{script}' /dev/null"
        yield command, f'sudo() {{ "$@"; }}; cd /opt/checkout && {script}'
