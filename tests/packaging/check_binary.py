"""`make binary` ends with this: starts the frozen program as an operator would, and says what it measured and what was wrong.

In: the folder of the program. Out: a table on standard output; exit code 1 when a limit is broken or a file outside the folder was read.
Plain Python, so that it runs without any venv.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator

VERSION_S = 0.2
FIRST_ANSWER_S = 1.5
WAIT_S = 30.0
DEMO_S = 120.0
TRIES = 12
BARE = {"PATH": "/nowhere", "LC_ALL": "C.UTF-8"}  # no Python can be found
# What belongs to the machine and not to the program: its C library (and C++ runtime), its name service, its kernel.
OF_THE_MACHINE = re.compile(
    r"/(proc|sys|dev)(/|$)|/etc/(ld\.so\.\w+|nsswitch\.conf|passwd|group|hosts|host\.conf|resolv\.conf|gai\.conf|localtime|services|protocols)$"
    r"|/(usr/)?lib(64)?/([\w-]+/)?(glibc-hwcaps/.*|lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s|resolv|nss_\w+)\.so\.\d+|ld-linux[\w-]*\.so\.\d+)$"
    r"|/usr/(lib/locale|share/(locale|zoneinfo))(/|$)|/usr/lib/[\w-]+/gconv/"
)


def free_port() -> int:
    """Gives a loopback port that nobody listened on a moment ago, below those that the kernel gives to clients."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def ask(url: str, body: object = None, *, within_s: float = WAIT_S) -> bytes:
    """Gives the first answer with 200."""
    request = urllib.request.Request(
        url, data=None if body is None else json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    end = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
                return bytes(reply.read())
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


@contextlib.contextmanager
def running(command: list[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program in a folder of its own, and ends it."""
    with open(pathlib.Path(folder, f"log{time.monotonic_ns()}"), "wb") as log:
        child = subprocess.Popen(
            command, env={**BARE, "HOME": folder, "TMPDIR": folder}, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def serve(program: str, folder: str, *, before: tuple[str, ...] = ()) -> float:
    """Starts an engine and the gateway with two workers, and chats; gives the seconds to the first whole answer."""
    engine, port = free_port(), free_port()
    with running([*before, program, "sim", "--protocol", "sglang", "--port", str(engine), "--speed", "0", "--output", "echo"], folder):
        wait_port(engine)
        flags = ("--worker-urls", f"grpc://127.0.0.1:{engine}", "--workers", "2", "--host", "127.0.0.1", "--port", str(port))
        began = time.monotonic()
        with running([*before, program, "launch", *flags, "--prometheus-host", "127.0.0.1", "--prometheus-port", "0"], folder):
            chat = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
            answer = json.loads(ask(f"http://127.0.0.1:{port}/v1/chat/completions", chat))
            seconds = time.monotonic() - began
            if not answer["choices"]:
                raise SystemExit(f"no answer: {answer}")
            ask(f"http://127.0.0.1:{port}/v1/completions", {"model": "sim-model", "prompt": "a b", "max_tokens": 4, "stream": True})
    return seconds


def wait_port(port: int) -> None:
    """Waits until somebody listens."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
        else:
            return
        time.sleep(0.01)


def version_seconds(program: str) -> float:
    """Gives the time of `smg --version`."""
    began = time.monotonic()
    subprocess.run([program, "--version"], env=BARE, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def demo(program: str, folder: str) -> str:
    """Gives what was wrong with the demo, or nothing."""
    done = subprocess.run(
        [program, "demo", "--once"],
        env={**BARE, "HOME": folder, "TMPDIR": folder},
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
    )
    return (
        ""
        if done.returncode == 0 and "\nrequest " in done.stdout
        else (done.stdout + done.stderr)[-1000:] or f"exit code {done.returncode}"
    )


def least(measure: Callable[[], float], *, enough: float) -> float:
    """Gives the least of several measurements; others may use the machine, so it goes on until one is good, to a limit."""
    seconds = [measure() for _ in range(3)]
    while min(seconds) > enough and len(seconds) < TRIES:
        seconds.append(measure())
    return min(seconds)


def foreign_files(program: str, home: pathlib.Path) -> list[str] | None:
    """Gives the files outside its own folders that it opened or ran, not those that it looked for in vain; None without strace."""
    if not shutil.which("strace"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder, "trace")
        serve(program, folder, before=(str(shutil.which("strace")), "-ff", "-qq", "-e", "trace=open,openat,execve", "-o", str(trace)))
        lines = [line for path in pathlib.Path(folder).glob("trace*") for line in path.read_text(errors="replace").splitlines()]
        opened = {found[1] for line in lines if (found := re.search(r'"(/[^"]*)".*\) = \d+', line))}
        own = (str(home) + "/", str(home), folder, os.path.realpath(folder))
        return sorted(name for name in opened if not name.startswith(own) and not OF_THE_MACHINE.match(name))


def main() -> int:
    """Gives the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="dist/smg")
    home = pathlib.Path(parser.parse_args().folder).resolve()
    program = str(home / "smg")
    version = least(lambda: version_seconds(program), enough=VERSION_S)
    with tempfile.TemporaryDirectory() as folder:
        first = least(lambda: serve(program, folder), enough=FIRST_ANSWER_S)
        fault = demo(program, folder)
    foreign = foreign_files(program, home)
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) >> 20
    busy = os.getloadavg()[0] > (os.cpu_count() or 1) + 1
    note = f"; NOT JUDGED: the machine is busy, its load is {os.getloadavg()[0]:.0f}" if busy else ""
    rows = [
        ("size", f"{size} MB", True),
        ("smg --version", f"{version:.2f} s (at most {VERSION_S:g}){note}", busy or version <= VERSION_S),
        ("first answer, 2 workers", f"{first:.2f} s after the start (at most {FIRST_ANSWER_S:g}){note}", busy or first <= FIRST_ANSWER_S),
        ("smg demo --once", fault or "runs", not fault),
        ("files outside", "NOT CHECKED: strace is missing" if foreign is None else ", ".join(foreign) or "none", not foreign),
    ]
    for name, words, good in rows:
        print(f"{name:24} {words}{'' if good else '   WRONG'}")
    return 0 if all(good for _, _, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
