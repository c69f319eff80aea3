"""The programs around a gateway: engine, load generator, and the gateway itself as a black box with a command and a port."""

import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from bench.rig.measure import affinity
from bench.rig.model import BenchModel
from bench.rig.programs import program
from smg.sim.processes import Child, ChildFailed, gateway_command

__all__ = ["BenchEngine", "Counters", "Gateway", "Load", "LoadFailed", "our_command", "read_load", "run_load", "start_load"]

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SERVED = "bench"
CONTEXT = 262_144  # that of the embedded model is too short for the growth check
PLAIN = ("--reasoning-parser", "none", "--tool-call-parser", "none")
OURS = ("--workers", "1", "--policy", "round_robin", "--log-level", "warn")


class LoadFailed(Exception):
    """The load generator could not run."""


class Counters(Struct, frozen=True, kw_only=True):
    """What an engine has counted since its start."""

    started: int
    finished: int
    aborted: int
    left: int
    prompt_tokens: int
    running: int
    cpu_s: float


class Load(Struct, frozen=True, kw_only=True):
    """What the load generator prints. Times in milliseconds."""

    ok: int
    failed: int
    left: int
    wall_s: float
    rps: float
    events: int
    bytes: int
    latency_ms_p50: float
    latency_ms_p90: float
    latency_ms_p99: float
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p90: float
    itl_ms_p99: float
    cpu_s: float
    errors: dict[str, int]
    error: str


class BenchEngine(Child):
    """`bench/src/engine.c` as one or more engines, on processors `on`."""

    def __init__(
        self,
        model: BenchModel,
        *,
        protocol: str = "sglang",
        engines: int = 1,
        unix_path: pathlib.Path | None = None,
        step_us: int = 0,
        on: set[int] | None = None,
    ) -> None:
        flags = {
            "protocol": protocol,
            "engines": engines,
            "ids": model.ids_file(),
            "step-us": step_us,
            "model-path": model.folder,
            "served-name": SERVED,
            "context": CONTEXT,
            "vocabulary": model.vocabulary,
            "stop-token": model.stop_token,
            **({"unix": unix_path} if unix_path else {}),
        }
        command = [str(program("engine")), *(str(part) for name, value in flags.items() for part in (f"--{name}", value))]
        with affinity(on):
            super().__init__("bench-engine", command=command)
        self.wait_ready(within_s=10)
        words = self.output().splitlines()[0].split()
        self.urls = words[1:-2]
        self._control = int(words[-1])

    def control(self, **settings: int) -> Counters:
        """Changes `step_us`, `tokens` or `chunk`; gives the counters. Raises ChildFailed without an answer."""
        text = " ".join(f"{name}={value}" for name, value in settings.items()) or " "
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(5)
            asking.sendto(text.encode(), ("127.0.0.1", self._control))
            try:
                return msgspec.json.decode(asking.recv(1000), type=Counters)
            except TimeoutError as error:
                raise ChildFailed("the bench engine does not answer") from error


def our_command(port: int, *, engines: Sequence[str], model: BenchModel, parsers: bool = False, flags: Sequence[str] = ()) -> list[str]:
    """Gives the command of this checkout's gateway, with one worker; without `parsers` an answer is plain text, whatever the template."""
    chosen = (*OURS, "--model-path", str(model.folder), *(() if parsers else PLAIN), *flags)
    return gateway_command(port=port, engines=engines, flags=chosen)


class Gateway(Child):
    """A gateway that answers; `started_s` is how long it took until then. `command` has its port in it already."""

    def __init__(self, name: str, *, command: Sequence[str], port: int, on: set[int] | None = None, within_s: float = 60) -> None:
        self.port = port
        began = time.monotonic()
        with affinity(on):
            super().__init__(name, command=command)
        try:
            self._wait_answer(within_s=within_s)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic() - began

    def ready_engines(self) -> int:
        """Gives how many engines it calls ready, by our `/readiness`."""
        with DIRECT.open(f"http://127.0.0.1:{self.port}/readiness", timeout=5) as reply:
            return int(json.load(reply)["healthy_workers"])

    def _wait_answer(self, *, within_s: float) -> None:
        body = json.dumps({"model": SERVED, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", body, headers)
        end, answer = time.monotonic() + within_s, "nothing"
        while time.monotonic() < end:
            try:
                with DIRECT.open(request, timeout=5) as reply:
                    reply.read()
                    return
            except urllib.error.HTTPError as error:
                answer = f"{error.code} {error.read(300)!r}"
            except OSError as error:
                answer = str(error)
            self.check()
            time.sleep(0.05)
        raise ChildFailed(f"{self.name} did not answer in {within_s:g} s ({answer}):\n{self.output()[-2000:]}")


def start_load(
    port: int,
    *,
    words_file: pathlib.Path,
    words: int,
    out_tokens: int,
    concurrency: int,
    duration_s: float = 0,
    requests: int = 0,
    mode: str = "unique",
    turns: int = 1,
    stream: bool = True,
    seed: int = 1,
    leave: int = 0,
    timeout_s: float = 60,
    on: set[int] | None = None,
) -> "subprocess.Popen[str]":
    """Starts the load generator; `requests` 0 runs for `duration_s`. Its output is read by `read_load`."""
    flags = {
        "port": port, "model": SERVED, "words": words_file, "prompt-words": words, "out-tokens": out_tokens, "concurrency": concurrency,
        "duration": duration_s, "requests": requests, "mode": mode, "turns": turns, "seed": seed, "leave": leave, "timeout": timeout_s,
    }  # fmt: skip
    command = [str(program("loadgen")), *(str(part) for name, value in flags.items() for part in (f"--{name}", value))]
    with affinity(on):
        return subprocess.Popen([*command, *([] if stream else ["--whole"])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_load(process: "subprocess.Popen[str]") -> Load:
    """Waits for a load generator and gives what it measured."""
    try:
        out, err = process.communicate()
    finally:
        process.kill()
    if process.returncode:
        raise LoadFailed(err)
    return msgspec.json.decode(out.encode(), type=Load)


def run_load(port: int, *, words_file: pathlib.Path, words: int, out_tokens: int, concurrency: int, **more: object) -> Load:
    """Starts a load and waits for it."""
    return read_load(
        start_load(port, words_file=words_file, words=words, out_tokens=out_tokens, concurrency=concurrency, **more)  # type: ignore[arg-type]
    )
