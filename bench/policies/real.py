"""The same comparison with real processes on the machine's clock: engines are `smg sim` over gRPC, each gateway is a black box before them.

`run` calls it for `--real`: a run comes in, figures go out. Each gateway has engines of its own, which have served nobody. The engines are
slower than real ones by `speed`, so that what the gateways themselves cost does not matter; rates are lower by as much, and times are shown
as they would be at full speed.
"""

import asyncio
import contextlib
import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from bench.policies.figures import Figures, Sample
from bench.policies.gateways import command, wait_engines
from bench.policies.replay import Run
from bench.policies.traces import TRACES, WARM, WORDS, Request
from bench.rig.processes import DIRECT, SERVED
from smg.sim.model import SimModel, load_model
from smg.sim.processes import Child, free_port, sim_command

__all__ = ["SPEED", "measure_real"]

SPEED = 0.25
READY_WITHIN_S, ANSWER_WITHIN_S = 90.0, 300.0
ALONE = {"PYTHONPATH": ""}  # or the original would find this package under the name that is its own, too
WORD = re.compile(r" [a-z]{2,12}")
SAID = re.compile(rb'"text": ?"[^"]')


class Counters(msgspec.Struct, frozen=True):
    """Of what an engine counts, what is of use here."""

    prompt_tokens: int
    cached_tokens: int


class Engines:
    """A fleet of engine processes; a context manager. `ids`: the file of the answers' ids."""

    def __init__(self, run: Run, *, ids: Path) -> None:
        settings = {"speed": SPEED, **run.engine, "output": "ids", "ids-file": ids, "served-name": SERVED, "status-port": 0}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        self._children = [Child(f"engine-{number}", command=sim_command(protocol="sglang", flags=flags)) for number in range(run.engines)]
        self._stack = contextlib.ExitStack()
        for child in self._children:
            self._stack.enter_context(child)

    def __enter__(self) -> list[str]:
        return [child.wait_ready(within_s=READY_WITHIN_S) for child in self._children]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def counters(self) -> list[Counters]:
        """Gives what each engine has counted."""
        found = []
        for child in self._children:
            url = child.output().partition(" status ")[2].split()[0]
            with DIRECT.open(f"{url}/counters", timeout=20) as reply:
                found.append(msgspec.json.decode(reply.read(), type=Counters))
        return found


def measure_real(run: Run, *, peer: str) -> Figures:
    """Runs a trace. `run.policy` says whose gateway it is, and the policy: `theirs cache_aware`. Raises ChildFailed when one fails."""
    whose, _, policy = run.policy.partition(" ")
    speed = float(run.engine.get("speed", SPEED))
    trace = TRACES[run.trace](random.Random(run.seed), engines=run.engines, load=run.load, seconds=run.seconds * speed)
    write = Spelling(load_model(""))
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.txt"
        ids.write_text(" ".join(map(str, write.ids[:100])))
        engines = Engines(run, ids=ids)
        with engines as urls:
            port = free_port()
            started = command(whose, policy, port=port, engines=urls, peer=peer)
            with Child(whose, command=started, environment=ALONE) as gateway:
                wait_engines(gateway, port=port, count=run.engines)
                sample = asyncio.run(send(trace, port=port, speed=speed, run=run, write=write, engines=engines))
    return sample.figures()


class Spelling:
    """Gives the text that becomes a trace's ids again, one word an id."""

    def __init__(self, model: SimModel) -> None:
        self.ids = [number for number in range(model.vocab_size) if WORD.fullmatch(model.decode([number]))]
        self._words = [model.decode([number]) for number in self.ids]

    def __call__(self, ids: Sequence[int]) -> str:
        return "".join(self._words[number - WORDS.start] for number in ids)


async def send(
    trace: list[Request], *, port: int, speed: float, run: Run, write: Callable[[Sequence[int]], str], engines: Engines
) -> Sample:
    """Sends the trace's requests when they are due and waits for all answers. Prompt tokens are counted after the warm part."""
    loop, warm, sample, tasks = asyncio.get_running_loop(), Sample(), Sample(), []
    begun, warm_s, before = loop.time(), run.seconds * speed * WARM, None
    for request in trace:
        if request.at_s > warm_s and before is None:
            before = asyncio.create_task(asyncio.to_thread(engines.counters))
        await asyncio.sleep(max(0.0, begun + request.at_s / speed - loop.time()))
        into = warm if before is None else sample
        tasks.append(asyncio.create_task(converse(request, port=port, speed=speed, write=write, into=into)))
    await asyncio.gather(*tasks)
    after = await asyncio.to_thread(engines.counters)
    for start, end in zip(await before if before else [], after, strict=True):
        prompt, cached = end.prompt_tokens - start.prompt_tokens, end.cached_tokens - start.cached_tokens
        sample.prompt, sample.cached = sample.prompt + prompt, sample.cached + cached
        sample.computed.append(prompt - cached)
    return sample


async def converse(request: Request, *, port: int, speed: float, write: Callable[[Sequence[int]], str], into: Sample) -> None:
    """Has a request answered, then those that follow it."""
    loop = asyncio.get_running_loop()
    for number, turn in enumerate((request, *request.then)):
        await asyncio.sleep(turn.think_s if number else 0)  # not slowed down, or chats would take a quarter of an hour
        body = {"model": SERVED, "prompt": write(turn.ids), "max_tokens": turn.output, "stream": True, "ignore_eos": True}
        begun = loop.time()
        try:
            times = await asyncio.wait_for(ask(port, json.dumps(body).encode()), ANSWER_WITHIN_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            into.failed += 1
            return
        into.add(begun, times, tokens=turn.output, scale=speed)


async def ask(port: int, body: bytes) -> list[float]:
    """Asks for a completion; gives the times at which text of it came. IncompleteReadError when there was none, or no end."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    times, ended = [], False
    try:
        while line := await reader.readline():
            if SAID.search(line):
                times.append(loop.time())
            ended = ended or line.startswith(b"data: [DONE]")
    finally:
        writer.close()
    if not times or not ended:
        raise asyncio.IncompleteReadError(b"", None)
    return times
