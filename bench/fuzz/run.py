"""Feeds mutated bytes to native code: HTTP/2 frames to a connection, messages to the decoder and to sinks, model output to parsers,
texts to the encoder.

    python bench/fuzz/run.py --count 20000              as tests/plane does it
    python bench/fuzz/run.py --count 10000000 --asan    under AddressSanitizer and UndefinedBehaviorSanitizer

Inputs are mutations of the corpus in tests/data/plane and of what each family writes, the same for the same --seed. A crash, a sanitizer's
report or a broken rule (an end that comes twice or never, text that is no UTF-8) ends the run; the last input's number is printed, and
--first N begins there.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "data" / "plane"
SHARES = {"frames": 0.15, "wire": 0.40, "sink": 0.30, "parser": 0.10, "bpe": 0.05}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1")
INTERESTING = (b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x80\x80\x80\x80\x08", b"\0\0\0\0\0", b"\xe2\x82", b"\xed\xa0\x80")

REACHED: Counter[str] = Counter()  # what came out of each target: messages, decoded messages, records and chunks

Target = Callable[[bytes, random.Random], None]


def mutate(seeds: list[bytes], draw: random.Random) -> bytes:
    """A seed with a few changes."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 6))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = draw.randrange(256)
        elif kind == 2:
            data[at:at] = draw.choice(INTERESTING)
        elif kind == 3:
            del data[at : at + draw.randrange(1, 9)]
        elif kind == 4:
            data[at:at] = data[at : at + draw.randrange(1, 40)]
        elif kind == 5:
            data[at:] = (other := draw.choice(seeds))[draw.randrange(len(other) + 1) :]
        elif kind == 6:
            del data[at:]
        else:
            data[at : at + 4] = draw.choice(INTERESTING)
    return bytes(data)


class Loop:
    """As much of an event loop as a connection needs, run by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.faults: list[dict[str, Any]] = []

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Does nothing."""

    add_writer = add_reader

    def remove_reader(self, fd: int) -> None:
        """Does nothing."""

    remove_writer = remove_reader

    def call_later(self, delay: float, callback: Callable[[], object]) -> "Loop":
        """Calls nothing, since the time does not come; gives what can be cancelled."""
        return self

    def cancel(self) -> None:
        """Cancels what would never be called."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Keeps the callback."""
        self.soon.append(callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps the fault."""
        self.faults.append(context)

    def run(self) -> None:
        """Runs what was kept."""
        while self.soon:
            self.soon.pop(0)()


class Frames:
    """One input: three calls on a connection, one of which is cancelled, paused or resumed from inside its sink, as `mood` will have it."""

    def __init__(self, mood: int) -> None:
        from smg._ext import Call, Connection, Headers

        self.mood = mood
        self.ends = [0, 0, 0]
        self.cancelled = [False] * 3
        self.calls: dict[int, Call] = {}
        self.loop = Loop()
        self.lost: list[int] = []
        ours, self.engine = socket.socketpair()
        ours.setblocking(False)
        self.connection = Connection(self.loop, ours, lambda: self.lost.append(1))  # type: ignore[arg-type]
        self.connection.start(lambda: None)
        self.headers = Headers(b"/s/m", b"h", secure=False, metadata=[])

    def start(self, i: int) -> None:
        """Starts a call."""
        from smg._ext import Inbox

        def end(status: int, text: str) -> None:
            self.ends[i] += 1

        inbox = Inbox(lambda messages: self.take(i, messages), end)
        self.calls[i] = self.connection.call(self.headers, None, b"request" * 20, inbox, message_limit=5000)

    def take(self, i: int, messages: list[bytes]) -> None:
        """What the sink of a call does with what it gets."""
        REACHED["frames"] += len(messages)
        if self.mood == i:
            self.cancelled[i] = True
            self.calls.pop(i).cancel()  # the last reference that is not the connection's
        elif self.mood == i + 3:
            self.calls[i].pause()
        elif self.mood == 6:
            self.calls[0].resume()
        elif self.mood == 7:
            self.connection.close()
        elif self.mood == 8:
            self.calls[i].linger()
            self.connection._sweep()  # type: ignore[attr-defined]  # as its timer does

    def read(self) -> None:
        """Lets the connection read, unless it is closed."""
        if not self.connection.closed:
            self.connection._readable()  # type: ignore[attr-defined]
            self.loop.run()

    def close(self) -> None:
        """The engine leaves: every call has ended once, and nothing is left."""
        self.engine.close()
        self.read()
        self.connection.close()
        self.loop.run()
        assert not self.loop.faults, self.loop.faults
        assert self.lost == [1]
        assert self.connection.active == 0
        for i in range(3):
            swept = self.mood == 8 and self.ends[i] == 0  # cancelled as it took too long
            assert self.ends[i] + self.cancelled[i] + swept == 1, (self.ends, self.cancelled)


def frames_target() -> Target:
    """Bytes of an engine's side of a connection."""

    def feed(data: bytes, draw: random.Random) -> None:
        frames = Frames(draw.randrange(10))
        for i in range(3):
            frames.start(i)
        frames.loop.run()  # the requests leave
        middle = draw.randrange(len(data) + 1)
        for piece in (data[:middle], data[middle:]):
            if piece and not frames.connection.closed:
                frames.engine.send(piece)
                frames.read()
        frames.close()

    return feed


def tables() -> list[Any]:
    """The field tables of all protocols."""
    from smg._ext import FieldTable
    from smg.engine import ENGINES, GrpcEngine, field_table

    kinds = [ENGINES.get(name) for name in ENGINES.names()]
    grpc_kinds = [kind for kind in kinds if issubclass(kind, GrpcEngine)]
    return [FieldTable(field_table(kind.service.methods_by_name["Generate"].output_type)) for kind in grpc_kinds]


def wire_target() -> Target:
    """The decoder alone."""
    from smg_ext.wire import decode_message

    known = tables()

    def feed(data: bytes, draw: random.Random) -> None:
        try:
            decode_message(known[draw.randrange(len(known))], data)
        except ValueError:
            return
        REACHED["wire"] += 1

    return feed


def sink_target() -> Target:
    """A sink, of one kind or the other, that gets up to four messages."""
    from smg._ext import ChatSink, EventSink, StopStrings, ThoughtMarks, Vocabulary
    from smg.pipeline.native import EVENTS
    from smg.types.event import Finished

    known = tables()
    make_parsers = parser_maker()
    pieces = [bytes([i]) for i in range(256)] + [b" the", b"STOP", "é€😀".encode(), b"\xf0\x9f", b"\x98\x80", b'"\\\n']
    vocabulary = Vocabulary(pieces, [0, 5, 261])
    stops = [None, StopStrings(("STOP",)), StopStrings(("a", "ab", "b\n", "😀", "thethe"))]
    thoughts = [None, ThoughtMarks(starts=("a", "STO"), ends=("b", "é€"), also_ends=("😀",), layout=("\n",))]

    def feed(data: bytes, draw: random.Random) -> None:
        written: list[bytes] = []
        events: list[Any] = []
        done: list[tuple[str, int, str]] = []
        options: dict[str, Any] = {
            "choices": draw.randrange(1, 4), "ends": (2, 3), "reported": (3,), "min_tokens": draw.randrange(3),
            "skip_special": draw.random() < 0.5, "include_stop": draw.random() < 0.5, "prompt_tokens": 7,
            "kept": ((), (5,))[draw.randrange(2)], "prompt_tail": ((), (259, 65), (300,))[draw.randrange(3)], "unary": draw.random() < 0.2,
            "done": lambda error, status, text: done.append((error, status, text)), "marks": thoughts[draw.randrange(2)],
            "in_think": draw.random() < 0.3, "stream_thoughts": draw.random() < 0.7,
        }  # fmt: skip
        whole = options["choices"] == 1 and draw.random() < 0.5
        kind = (known[draw.randrange(len(known))], vocabulary, stops[draw.randrange(3)])
        sink: ChatSink | EventSink
        if draw.random() < 0.5:
            frame = {"prefix": b'data: {"id":"x"', "tail": b"}\n\n", "hide_thoughts": draw.random() < 0.2}
            sink = ChatSink(*kind, **options, **frame, whole=whole, write=written.append)
        else:
            parsers = make_parsers(draw, options["choices"])[1] if options["marks"] is None and draw.random() < 0.5 else ()
            more = {"split": draw.random() < 0.5, "gather": draw.random() < 0.3, "parsers": parsers, "shapes": EVENTS}
            sink = EventSink(*kind, **options, **more, take=events.extend)
        parts = draw.randrange(1, 5)
        for i in range(parts):
            sink.feed(data[len(data) * i // parts :] if i % 2 else data)
        assert len(done) <= 1
        REACHED["sink"] += len(written) + len(events)
        if isinstance(sink, ChatSink) and whole and done and done[0][:2] == ("", 0):
            assert json.loads(sink.last)["message"]["content"] is not None
        elif isinstance(sink, ChatSink) and not whole:
            written.append(sink.last)
        for line in b"".join(written).decode().splitlines():
            assert not line or json.loads(line.removeprefix("data: "))["choices"]
        for event in events:
            assert 0 <= event.choice < options["choices"]
            assert isinstance(event, Finished) or getattr(event, "text", "x"), event
            getattr(event, "text", "").encode()

    return feed


def parser_maker() -> Callable[[random.Random, int], tuple[dict[str, Any], tuple[Any, ...]]]:
    """Gives what draws families and options, and makes that many native parsers of them."""
    from smg.parser import REASONING, TOOLS, build
    from tests.parser.oracle import tools_named
    from tests.parser.writers import SCHEMA

    tools = tools_named("f", "get_weather", **SCHEMA)
    families, thoughts = TOOLS.names(), [None, None, *REASONING.names()]

    def make(draw: random.Random, count: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        while True:
            options = {
                "reasoning": draw.choice(thoughts), "tool": draw.choice(families), "tools": tools, "in_think": draw.random() < 0.3,
                "any_tool": draw.random() < 0.1, "parallel": draw.random() < 0.8, "named": "f" if draw.random() < 0.05 else None,
            }  # fmt: skip
            with contextlib.suppress(ValueError):  # their marks may clash
                return options, tuple(build(**options, native=True) for _ in range(count))

    return make


def parser_target() -> Target:
    """A native parser, fed in pieces; one in two hundred inputs goes to its specification too, which must give the same."""
    from smg.parser import build, marks
    from tests.parser.oracle import alike, joined

    make = parser_maker()

    def feed(data: bytes, draw: random.Random) -> None:
        options, (parser,) = make(draw, 1)
        text = data.decode(errors="surrogateescape")
        known = marks(options["reasoning"], options["tool"])
        for _ in range(draw.choice((0, 1, 3)) if known else 0):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(known) + text[at + draw.randrange(4) :]
        size = draw.choice((1, 4, 30, 10_000))
        deltas = [text[at : at + size] for at in range(0, len(text), size)]
        if draw.random() < 0.005 and (specified := build(**options, native=False)) is not None:
            pieces = [piece for given in alike(specified, parser, deltas) for piece in given]
        else:
            pieces = [piece for given in (*(parser.feed(delta) for delta in deltas), parser.finish()) for piece in given]
        joined(pieces)
        assert parser.work < 150 * len(text) + 2_000, parser.work
        REACHED["parser"] += len(pieces)

    return feed


def bpe_target() -> Target:
    """The encoder, over small vocabularies."""
    from bench.fuzz.encoder import make_target

    return make_target(lambda tokens: REACHED.update(bpe=tokens))


MAKERS = {"bpe": bpe_target, "frames": frames_target, "wire": wire_target, "sink": sink_target, "parser": parser_target}


def corpus(name: str) -> list[bytes]:
    """The seeds of a target."""
    if name == "bpe":
        from bench.fuzz.encoder import seeds

        return seeds()
    if name == "parser":
        from tests.parser.writers import MORE_WRITERS, TOOL_WRITERS

        calls = [("get_weather", {"s": 'a "b"\n<c> é東\\', "i": 7, "b": True, "o": {"k": [1, None, "x"]}, "a": []}), ("f", {})]
        return [f"Let me\n\nlook.\n{writer.write(calls)}\nbye".encode() for _, writer in (*TOOL_WRITERS.items(), *MORE_WRITERS)]
    return [path.read_bytes() for path in sorted((CORPUS / ("frames" if name == "frames" else "messages")).glob("*.bin"))]


def fuzz(name: str, *, count: int, seed: int, first: int) -> None:
    """Feeds `count` inputs to a target, and prints how many and how long."""
    feed, seeds = MAKERS[name](), corpus(name)
    start = time.process_time()
    number = first
    try:
        for number in range(first, first + count):
            draw = random.Random(seed * 1_000_003 + number)
            feed(mutate(seeds, draw), draw)
            if number % 100_000 == 99_999:
                print(f"{name}: {number + 1} inputs, {time.process_time() - start:.0f} s of CPU", flush=True)
    except BaseException:
        print(f"{name}: stopped at input {number} of seed {seed}", flush=True)
        raise
    print(f"{name}: {count} inputs, {time.process_time() - start:.1f} s of CPU, no fault; {REACHED[name]} results", flush=True)


def build_sanitized(folder: pathlib.Path) -> None:
    """Builds smg_ext with sanitizers in a folder."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    shutil.copytree(ROOT / "smg_ext", folder / "smg_ext", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    os.chdir(folder)
    names = sorted(path.stem for path in pathlib.Path("smg_ext").glob("*.pyx"))
    flags = [*SANITIZE, "-std=c11"]
    extensions = [
        Extension(f"smg_ext.{name}", [f"smg_ext/{name}.pyx"], libraries=["nghttp2"], extra_compile_args=flags, extra_link_args=flags[:1])
        for name in names
    ]
    command = Distribution({"ext_modules": cythonize(extensions, build_dir="c", quiet=True)}).get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


def under_sanitizers(arguments: list[str]) -> int:
    """Runs this file again with the sanitized modules."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        build_sanitized(pathlib.Path(folder))
        environment = {
            **os.environ,
            "LD_PRELOAD": str(pathlib.Path(library).resolve()),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join((folder, str(ROOT))),
            "PYTHONSAFEPATH": "1",
        }
        done = subprocess.run([sys.executable, __file__, *arguments], env=environment, cwd=folder, check=False)
    return done.returncode


def main() -> int:
    """Reads the command line and runs the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="inputs over all targets (default: %(default)s)")
    parser.add_argument("--target", choices=sorted(MAKERS), help="one target instead of all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--asan", action="store_true", help="build with sanitizers in a temporary folder, and run there")
    options = parser.parse_args()
    if options.asan:
        return under_sanitizers([argument for argument in sys.argv[1:] if argument != "--asan"])
    sys.path.append(str(ROOT))
    import smg_ext

    print(f"modules of {pathlib.Path(smg_ext.__file__).parent}", flush=True)
    for name, share in SHARES.items():
        if options.target in (None, name):
            count = options.count if options.target else max(1, int(options.count * share))
            fuzz(name, count=count, seed=options.seed, first=options.first)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
