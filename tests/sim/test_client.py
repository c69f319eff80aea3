"""The demo's own client: what it makes of answers that are not as they should be."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from smg.sim.client import AskFailed, first_model, stream_chat

FIRST = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n: still here\n\n'
STREAM = FIRST + b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'


class Server(http.server.HTTPServer):
    status, body = 200, b""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def texts(server: Server) -> list[str]:
    return [choice.delta.content or "" for chunk in stream_chat(url(server), {"messages": []}) for choice in chunk.choices]


def test_a_stream(server: Server) -> None:
    server.body = STREAM + b"data: [DONE]\n\n"
    assert texts(server) == ["Hi"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (STREAM, "ended early"),
        (STREAM + b'data: {"error":{"message":"engine gone"}}\n\ndata: [DONE]\n\n', "engine gone"),
        (b"data: nonsense\n\n", "not what was expected"),
    ],
)
def test_a_stream_that_fails(server: Server, body: bytes, words: str) -> None:
    server.body = body
    with pytest.raises(AskFailed, match=words):
        texts(server)


def test_models(server: Server) -> None:
    server.body = b'{"object":"list","data":[{"id":"one"},{"id":"two"}]}'
    assert first_model(url(server)) == "one"
    server.body = b'{"data":[]}'
    with pytest.raises(AskFailed, match="no model"):
        first_model(url(server))


def test_refused_and_unreachable(server: Server) -> None:
    server.status, server.body = 503, b'{"error":"busy"}'
    with pytest.raises(AskFailed, match=r"503.*busy"):
        texts(server)
    with pytest.raises(AskFailed, match="refused"):
        first_model("http://127.0.0.1:1")
