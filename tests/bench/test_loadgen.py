"""The load generator counts what a server said, however the bytes come, and tells failures apart."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.rig.model import BenchModel
from bench.rig.processes import Load, run_load

EVENTS = [
    '{"choices":[{"delta":{"role":"assistant","content":""}}]}',
    '{"choices":[{"delta":{"content":"Hel"}}]}',
    '{"choices":[{"delta":{"content":"lo"}}]}',
    "[DONE]",
]
BODY = "".join(f"data: {event}\n\n" for event in EVENTS).encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes, *, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def plain(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@contextlib.contextmanager
def server(pieces: Callable[[int], list[bytes]], asked: list[dict[str, object]]) -> Iterator[int]:
    """Answers the n-th request of a connection with `pieces(n)`, each a packet of its own; none: the connection is closed."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = 0
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while line not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    line = reader.readline()
                asked.append(json.loads(reader.read(length)))
                parts = pieces(number)
                if not parts:
                    return
                for part in parts:
                    connection.sendall(part)
                number += 1

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads: list[threading.Thread] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    thread = threading.Thread(target=serve, args=(listening.accept()[0],))
                    thread.start()
                    threads.append(thread)

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def load(model: BenchModel, pieces: Callable[[int], list[bytes]], **more: object) -> tuple[Load, list[dict[str, object]]]:
    asked: list[dict[str, object]] = []
    with server(pieces, asked) as port:
        given = {"words": 12, "out_tokens": 7, "concurrency": 2, "requests": 10, "timeout_s": 10, **more}
        return run_load(port, words_file=model.words_file(), **given), asked  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_streams_in_any_cut(model: BenchModel, size: int) -> None:
    bytes_of = chunked(BODY, size=size)
    result, asked = load(model, lambda number: [bytes_of[at : at + 40] for at in range(0, len(bytes_of), 40)])
    assert (result.ok, result.failed, result.events, result.bytes) == (10, 0, 40, 10 * len(BODY))
    assert 0 < result.ttft_ms_p50 <= result.latency_ms_p50 <= result.latency_ms_p99
    assert all(body["stream"] is True and body["max_tokens"] == 7 for body in asked)


def test_whole_answers(model: BenchModel) -> None:
    result, asked = load(model, lambda number: [plain(b'{"choices":[]}')], stream=False)
    assert (result.ok, result.failed, result.events) == (10, 0, 0)
    assert all("stream" not in body for body in asked)


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        ([plain(b'{"error":"no"}', "503 Service Unavailable")], "status_503"),
        ([chunked(BODY[:-14], size=50)], "unfinished"),
        ([CHUNKED + b"zz\r\n"], "malformed"),
        ([], "reset"),
    ],
)
def test_failures_have_names(model: BenchModel, pieces: list[bytes], name: str) -> None:
    result, _ = load(model, lambda number: pieces)
    assert (result.ok, result.failed) == (0, 10)
    assert {key: count for key, count in result.errors.items() if count} == {name: 10}
    assert "503" not in name or "no" in result.error


def test_some_clients_leave(model: BenchModel) -> None:
    opening = CHUNKED + b"%x\r\n%b\r\n" % (len(BODY[:150]), BODY[:150])
    assert b"Hel" in opening
    rest = chunked(BODY[150:], size=1000).removeprefix(CHUNKED)
    result, _ = load(model, lambda number: [opening, rest], leave=5, requests=20)
    assert result.failed == 0
    assert result.ok + result.left == 20
    assert result.left <= 4  # one whose answer came in one read is not left


def test_prompts_are_as_asked(model: BenchModel) -> None:
    def contents(**more: object) -> list[str]:
        _, asked = load(model, lambda number: [plain(b"{}")], stream=False, concurrency=1, **more)
        return [str(body["messages"][-1]["content"]) for body in asked]  # type: ignore[index]

    assert len(set(contents())) == 10
    assert contents() == contents()  # the same seed, the same prompts
    assert contents(seed=2) != contents()
    assert len(set(contents(mode="identical"))) == 1
    shared = contents(mode="shared", words=80)
    assert len(set(shared)) == 10
    assert len({text[:60] for text in shared}) == 1


def test_turns_make_a_conversation(model: BenchModel) -> None:
    _, asked = load(model, lambda number: [plain(b"{}")], stream=False, turns=3, words=50)
    roles = [message["role"] for message in asked[0]["messages"]]  # type: ignore[attr-defined]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
