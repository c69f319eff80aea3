"""A client of the gateway that needs no library: asks for the model, streams a chat.

In: the gateway's address and a question. Out: the pieces of the answer as they come. Used by the demo, which is in the package too,
where no SDK is.
"""

import http.client
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TypeVar

import msgspec
from msgspec import Struct

__all__ = ["AskFailed", "Chunk", "first_model", "stream_chat"]

ANSWER_S = 120.0
LONGEST_LINE = 1 << 20
DONE = b"[DONE]"

Answer = TypeVar("Answer")


class AskFailed(Exception):
    """The gateway did not answer, or not as it should; the message says what came."""


class Delta(Struct, frozen=True):
    """What a choice says anew."""

    content: str | None = None


class Choice(Struct, frozen=True):
    """One of a chunk's choices."""

    delta: Delta = Delta()


class Details(Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(Struct, frozen=True):
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: Details | None = None


class Chunk(Struct, frozen=True):
    """One event of a stream, as far as it is read here; `error` is what a failure says in mid-stream."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: dict[str, object] | None = None


class ModelCard(Struct, frozen=True):
    """One entry of the list of models."""

    id: str


class ModelList(Struct, frozen=True):
    """The answer of /v1/models."""

    data: tuple[ModelCard, ...]


def first_model(url: str) -> str:
    """Gives the id of the first model that the gateway lists. AskFailed when it lists none."""
    with closing(_connect(url)) as connection:
        models = _decoded(_reply(connection, "GET", "/v1/models").read(), ModelList)
    if not models.data:
        raise AskFailed("the gateway lists no model")
    return models.data[0].id


def stream_chat(url: str, body: Mapping[str, object]) -> Iterator[Chunk]:
    """Gives each chunk of a chat as it comes; `body` is the request but for `stream`. AskFailed when it does not come to its end."""
    with closing(_connect(url)) as connection:
        reply = _reply(connection, "POST", "/v1/chat/completions", {**body, "stream": True})
        while line := _line(reply):
            name, _, data = line.strip().partition(b": ")
            if name != b"data":
                continue
            if data == DONE:
                return
            chunk = _decoded(data, Chunk)
            if chunk.error:
                raise AskFailed(str(chunk.error.get("message", chunk.error)))
            yield chunk
    raise AskFailed("the stream ended early")


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=ANSWER_S)


def _reply(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
    data = None if body is None else msgspec.json.encode(body)
    try:
        connection.request(method, path, data, {"content-type": "application/json"})
        reply = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise AskFailed(f"{path}: {error}") from error
    if reply.status != http.client.OK:
        raise AskFailed(f"{path} gave {reply.status}: {reply.read(2000).decode(errors='replace')}")
    return reply


def _line(reply: http.client.HTTPResponse) -> bytes:
    try:
        return reply.readline(LONGEST_LINE)
    except (OSError, http.client.HTTPException) as error:
        raise AskFailed(f"the stream broke: {error}") from error


def _decoded(data: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise AskFailed(f"not what was expected: {error}") from error
