"""Kubernetes' API server over HTTP/1.1: whole answers, and answers that go on for as long as something is watched.

Address, token and authorities are those of the pod's service account, all of them read again for each request, since tokens are replaced
while the pod runs. Used by `smg.worker.discovery.kubernetes`. Source: "API concepts" and "Accessing the API from a Pod" of Kubernetes'
documentation.
"""

import asyncio
import contextlib
import os
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httptools

__all__ = ["ApiFailed", "ApiServer"]

CONNECT_S = 10.0
HEAD_S = 30.0
CHUNK = 1 << 16
MOST_BYTES = 256 << 20
LONGEST_LINE = 8 << 20
LONGEST_REASON = 300


class ApiFailed(Exception):
    """The server could not be asked, or refused; `status` 0 = no answer."""

    def __init__(self, text: str, *, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Answer:
    """What the parser calls: the parts of one answer as they come."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: deque[bytes] = deque()
        self.whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Takes bytes of the connection. Raises ApiFailed for what is no HTTP."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ApiFailed(f"the API server's answer cannot be read: {error}") from error

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.whole = True


class ApiServer:
    """Asks with a connection a request. `url` empty: where the environment of a pod says that the server is."""

    def __init__(self, url: str, *, account: str, environment: Mapping[str, str] = os.environ) -> None:
        self._url = url
        self._account = Path(account)
        self._environment = environment

    async def get(self, path: str, query: Mapping[str, str], *, timeout_s: float) -> bytes:
        """Gives a whole answer. Raises ApiFailed."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(timeout_s), self._asked(path, query) as (reader, answer):
                async for part in _body(reader, answer, silence_s=timeout_s):
                    parts.append(part)
                    size += len(part)
                    if size > MOST_BYTES:
                        raise ApiFailed(f"the API server's answer has more than {MOST_BYTES} bytes")
        except TimeoutError as error:
            raise ApiFailed("the API server does not answer in time") from error
        if not answer.whole:
            raise ApiFailed("the API server's answer was cut")
        return b"".join(parts)

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yields the lines of an answer as they come, until it ends. Raises ApiFailed, also when nothing comes for `silence_s`."""
        rest = b""
        async with self._asked(path, query) as (reader, answer):
            async for part in _body(reader, answer, silence_s=silence_s):
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    if line.strip():
                        yield line
                if len(rest) > LONGEST_LINE:
                    raise ApiFailed(f"a line of the API server has more than {LONGEST_LINE} bytes")

    @contextlib.asynccontextmanager
    async def _asked(self, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[asyncio.StreamReader, Answer]]:
        """A connection on which the head of a good answer has come. Other answers raise ApiFailed with what they say."""
        reader, writer, head = await self._connected(f"{path}?{urlencode(query)}")
        try:
            writer.write(head)
            answer = Answer()
            async with asyncio.timeout(HEAD_S):
                while not answer.status:
                    answer.feed(await _read(reader))
                if answer.status != 200:
                    reason = await self._reason(reader, answer)
                    raise ApiFailed(f"the API server answers {answer.status}: {reason}", status=answer.status)
            yield reader, answer
        except TimeoutError as error:
            raise ApiFailed("the API server does not answer in time") from error
        except OSError as error:
            raise ApiFailed(f"the connection to the API server broke: {error}") from error
        finally:
            writer.close()

    @staticmethod
    async def _reason(reader: asyncio.StreamReader, answer: Answer) -> str:
        text = b""
        async for part in _body(reader, answer, silence_s=HEAD_S):
            text += part
            if len(text) > LONGEST_REASON:
                break
        return text[:LONGEST_REASON].decode("utf-8", "replace")

    async def _connected(self, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        parts = urlsplit(self._address())
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        token, context = await asyncio.to_thread(self._credentials, parts.scheme == "https")
        lines = [f"GET {parts.path.rstrip('/')}{target} HTTP/1.1", f"host: {parts.netloc}", "accept: application/json", "connection: close"]
        lines += [f"authorization: Bearer {token}"] if token else []
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except (OSError, TimeoutError) as error:
            raise ApiFailed(f"no connection to the API server at {host}:{port}: {error}") from error
        return reader, writer, ("\r\n".join([*lines, "", ""])).encode()

    def _address(self) -> str:
        if self._url:
            return self._url
        host, port = (self._environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host:
            raise ApiFailed("this is no pod of a cluster: KUBERNETES_SERVICE_HOST is not set, and neither is discovery.kubernetes_api")
        return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"

    def _credentials(self, secure: bool) -> tuple[str, ssl.SSLContext | None]:
        """Reads files: use a thread."""
        token, authorities = self._account / "token", self._account / "ca.crt"
        try:
            text = token.read_text("ascii").strip() if token.exists() else ""
            context = ssl.create_default_context(cafile=str(authorities) if authorities.exists() else None) if secure else None
        except (OSError, ValueError) as error:
            raise ApiFailed(f"the service account in {self._account} cannot be used: {error}") from error
        if not text.isprintable():
            raise ApiFailed(f"the token in {self._account} has characters that a header cannot carry")
        return text, context


async def _read(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(CHUNK)
    if not data:
        raise ApiFailed("the API server closed the connection")
    return data


async def _body(reader: asyncio.StreamReader, answer: Answer, *, silence_s: float) -> AsyncGenerator[bytes, None]:
    """Yields what has come of the body; ends with it, or with the connection."""
    while True:
        while answer.parts:
            yield answer.parts.popleft()
        if answer.whole:
            return
        async with asyncio.timeout(silence_s):
            data = await reader.read(CHUNK)
        if not data:
            return
        answer.feed(data)
