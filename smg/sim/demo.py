"""`smg demo`: engines, the gateway and a chat, to see the whole at work without a GPU.

Starts two simulated engines (or one real one with `--engine mlx`) and the gateway as processes of their own, sends streamed chats, prints
the tokens as they come and a table of what was measured at the client, and ends everything at the end.
"""

import argparse
import contextlib
import pathlib
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from types import FrameType

import msgspec
from msgspec import Struct

from smg.sim.client import AskFailed, first_model, stream_chat
from smg.sim.processes import Child, ChildFailed, free_port, gateway_command, sim_command, wait_http

__all__ = ["main"]

GUIDE = (
    "You are the guide of a small museum of computing. Answer briefly, in plain words, and say which room of the museum to visit next: "
    "the hall of relays, the cabinet of slide rules, the tape library or the terminal room."
)
QUESTIONS = ("What is the capital of France?", "What is the capital of France?", "Why is the sky blue?", "What is the capital of France?")
ANSWER = (
    "I am a simulated engine: no model and no GPU. I say these words whatever you ask, at the pace of a real one, and I remember prompts "
    "as a real one does."
)
SIM_FLAGS = ("--status-port", "0", "--output", "text", "--text", ANSWER, "--itl-ms", "20", "--prefill-token-us", "1000")
READY_WITHIN_S = {"sim": 30.0, "mlx": 900.0}


class RunningEngine(Struct, frozen=True, kw_only=True):
    """An engine of the demo: `status` is the address of a simulated engine's counters, empty for a real one."""

    name: str
    address: str
    status: str = ""

    def started(self) -> int:
        """How many requests it has started; 0 when it does not say."""
        if not self.status:
            return 0
        with urllib.request.urlopen(f"{self.status}/counters", timeout=5) as reply:
            return msgspec.json.decode(reply.read(), type=Counted).started


class Counted(Struct, frozen=True):
    """What is read of a simulated engine's counters."""

    started: int


class Measured(Struct, frozen=True, kw_only=True):
    """One chat as its client saw it. Times in seconds; `rate` in tokens per second after the first token."""

    question: str
    engine: str
    first_token_s: float
    rate: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def say(words: str) -> None:
    """Prints a line at once."""
    print(words, flush=True)


def mlx_command() -> list[str]:
    """Gives the command of the real engine, which lives with the tests of a checkout."""
    script = pathlib.Path(__file__).parents[2] / "tests" / "engines" / "mlx_engine.py"
    if not script.exists():
        raise ChildFailed("--engine mlx needs a checkout of the repository: its script is tests/engines/mlx_engine.py")
    return [sys.executable, str(script)]


def engine_children(kind: str, *, protocol: str, stack: contextlib.ExitStack) -> list[Child]:
    """Starts the engines, not waiting for them."""
    if kind == "mlx":
        return [stack.enter_context(Child("engine", command=mlx_command()))]
    command = sim_command(protocol=protocol, flags=SIM_FLAGS)
    return [stack.enter_context(Child(f"engine-{number}", command=command)) for number in (1, 2)]


def follow(child: Child, *, within_s: float) -> RunningEngine:
    """Waits for the engine's address, and passes on what it says of its set-up meanwhile."""
    end, shown = time.monotonic() + within_s, 0
    while time.monotonic() < end:
        lines = child.output().split("\n")[:-1]
        for line in lines[shown:]:
            match line.split():
                case ["ready", address]:
                    return RunningEngine(name=child.name, address=address)
                case ["ready", address, "status", status]:
                    return RunningEngine(name=child.name, address=address, status=status)
            say(f"  {line}")
        shown = len(lines)
        child.check()
        time.sleep(0.05)
    raise ChildFailed(f"{child.name} was not ready after {within_s:g} s")


def start(options: argparse.Namespace, *, stack: contextlib.ExitStack) -> tuple[str, list[RunningEngine]]:
    """Starts engines and gateway; gives the gateway's address, and the engines."""
    began = time.monotonic()
    children = engine_children(options.engine, protocol=options.protocol, stack=stack)
    engines = [follow(child, within_s=READY_WITHIN_S[options.engine]) for child in children]
    for engine in engines:
        say(f"{engine.name:9} {engine.address}")
    port = options.port or free_port()
    url = f"http://127.0.0.1:{port}"
    command = gateway_command(port=port, engines=[engine.address for engine in engines], flags=("--workers", "2"))
    gateway = stack.enter_context(Child("gateway", command=command))
    wait_http(gateway, url=f"{url}/readiness", within_s=60)
    say(f"gateway   {url} (all ready after {time.monotonic() - began:.1f} s)\n")
    return url, engines


def answered_by(engines: Sequence[RunningEngine], before: Sequence[int]) -> str:
    """Names the engine that has started a request since `before` was taken: the engines' own word, not the gateway's."""
    if len(engines) == 1:
        return engines[0].name
    return next((engine.name for engine, count in zip(engines, before, strict=True) if engine.started() > count), "?")


def chat(url: str, *, model: str, question: str, engines: Sequence[RunningEngine]) -> Measured:
    """Streams one chat, printing its tokens as they come; gives what was measured."""
    say(f"> {question}")
    before = [engine.started() for engine in engines]
    guide = [{"role": "system", "content": GUIDE}] if engines[0].status else []  # a 135M model loses its thread
    messages = [*guide, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": 64, "temperature": 0, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    first = last = 0.0
    usage = None
    for chunk in stream_chat(url, body):
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            last = time.monotonic() - began
            first = first or last
            print(chunk.choices[0].delta.content, end="", flush=True)
    print("\n", flush=True)
    if usage is None:
        raise AskFailed("the stream ended without usage")
    details = usage.prompt_tokens_details
    return Measured(
        question=question,
        engine=answered_by(engines, before),
        first_token_s=first,
        rate=(usage.completion_tokens - 1) / (last - first) if last > first else 0.0,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens,
    )


def table(rows: Sequence[Measured]) -> Iterator[str]:
    """Gives the lines of the table."""
    yield f"{'request':34} {'engine':9} {'TTFT':>8} {'tokens/s':>9} {'prompt':>7} {'cached':>7} {'answer':>7}"
    for row in rows:
        counts = f"{row.prompt_tokens:7} {row.cached_tokens:7} {row.completion_tokens:7}"
        yield f"{row.question[:34]:34} {row.engine:9} {row.first_token_s * 1000:5.0f} ms {row.rate:9.1f} {counts}"


def show(url: str, *, engines: Sequence[RunningEngine]) -> str:
    """Sends the chats and prints the table; gives the model's name."""
    model = first_model(url)
    rows = [chat(url, model=model, question=question, engines=engines) for question in QUESTIONS]
    for line in table(rows):
        say(line)
    return model


def serve_on(url: str, *, model: str) -> None:
    """Prints a line to try by hand, and waits until a signal ends it."""
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    say(f"\ncurl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    say("\nServing until Ctrl-C.")
    signal.pause()


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="smg demo", description="engines, the gateway and a chat, without a GPU")
    parser.add_argument(
        "--engine", choices=("sim", "mlx"), default="sim", help="sim: two simulated engines; mlx: a real 135M model on the CPU"
    )
    parser.add_argument("--protocol", default="vllm", help="protocol that the simulated engines speak")
    parser.add_argument("--port", type=int, default=0, help="port of the gateway; 0 takes a free one")
    parser.add_argument("--once", action="store_true", help="end after the table instead of serving until Ctrl-C")
    return parser.parse_args(arguments)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Turns a signal into what Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; gives the exit status: 0, or 1 when something did not start or answer."""
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)  # a shell starts its background jobs with it ignored
    try:
        with contextlib.ExitStack() as stack:
            url, engines = start(options, stack=stack)
            model = show(url, engines=engines)
            if not options.once:
                serve_on(url, model=model)
    except KeyboardInterrupt:
        say("\nstopped")
    except (AskFailed, ChildFailed) as error:
        print(f"smg demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
