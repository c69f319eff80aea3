"""Bytes in, requests out: llhttp with the limits and the strictness that it leaves to its caller. Does no I/O; `connection.py` owns one.

llhttp cannot be paused through httptools, so it is never given bytes of two messages at once: a head and a chunked message end with CRLF
CRLF, a body of known length by its count, and slices end there at the latest. llhttp decides what is valid and how a message is framed;
since it lets no bare CR or LF pass, the head's lines can then be told apart by splitting, which costs a fraction of its callbacks.
"""

from typing import Protocol

import httptools

from smg.server.front.limits import Limits
from smg.server.front.scope import Headers, Peer, Scope

__all__ = ["Receiver", "Refused", "RequestReader"]

END = b"\r\n\r\n"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
VERSIONS = {"HTTP/1.1": "1.1", "HTTP/1.0": "1.0"}
# Bytes of the longest request line besides the target.
AROUND_TARGET = len("OPTIONS  HTTP/1.1\r\n")
# Where two values would let two readers of the same bytes see two requests (RFC 9112, 11.2).
SINGLE = ("host", "content-length", "transfer-encoding")
KNOWN_LINES, KNOWN_CHARACTERS = 32, 256
IN_HEAD, IN_LENGTH, IN_CHUNKS = range(3)


class Refused(Exception):
    """The bytes are no request that is served here; nothing after them can be read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Receiver(Protocol):
    """Who is told."""

    def request_begun(self, scope: Scope, *, keep_alive: bool) -> None:
        """Takes a complete head."""

    def body_received(self, data: bytes) -> None:
        """Takes a piece of the body."""

    def request_received(self) -> None:
        """Learns that the request is complete."""


class RequestReader:
    """Reads one request after the other. `begun` tells whether a head has started to arrive and is not complete."""

    def __init__(self, receiver: Receiver, *, peer: Peer, limits: Limits) -> None:
        self._receiver = receiver
        self._peer = peer
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._phase = IN_HEAD
        self._tail = b""  # how much of END the last slice ended with
        self._head = bytearray()  # of the request, as far as it came in earlier slices
        self._known: dict[str, tuple[str, str]] = {}
        self._left = 0  # bytes of a body of known length
        self._overhead = 0  # bytes since the last one of a chunk's data
        self._complete = False
        self._muted = False

    @property
    def begun(self) -> bool:
        """True while a head is under way."""
        return self._phase == IN_HEAD and bool(self._head)

    def feed(self, data: bytes) -> bytes:
        """Reads up to the end of the current request and gives what lies behind it. Raises Refused; the reader is of no use after that."""
        start, size = 0, len(data)
        while start < size:
            end = self._slice_end(data, start)
            self._parse(data if end - start == size else memoryview(data)[start:end], end - start)
            start = end
            if self._complete:
                self._complete = False
                return data[start:]
        return b""

    def close(self) -> None:
        """Lets go of the parser, which holds this object in turn."""
        del self._parser

    def _slice_end(self, data: bytes, start: int) -> int:
        if self._phase == IN_LENGTH:
            return min(len(data), start + self._left)
        if self._tail and data.startswith(END[len(self._tail) :], start):
            end = start + len(END) - len(self._tail)
            self._tail = b""
            return end
        found = data.find(END, start)
        if found < 0:
            self._tail = _beginning_of_end(self._tail + data[max(start, len(data) - 3) :])
            return len(data)
        self._tail = b""
        return found + len(END)

    def _parse(self, piece: bytes | memoryview, size: int) -> None:
        phase = self._phase
        if phase == IN_HEAD:
            self._head += piece
            self._check_length()
        elif phase == IN_CHUNKS:
            self._overhead += size
        else:
            self._left -= size
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError as error:
            ours = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            raise ours or Refused(400, f"malformed HTTP: {error}") from None
        if phase == IN_CHUNKS and self._overhead > self._limits.head_bytes:
            raise Refused(431, "a chunk's header, or the trailer, is too long")

    def _check_length(self) -> None:
        size, line = len(self._head), self._limits.target_bytes + AROUND_TARGET
        if size > line and b"\r\n" not in self._head[:line]:
            raise Refused(414, "the request's target is too long")
        if size > self._limits.head_bytes:
            raise Refused(431, "the request's headers are too long")

    def _ignore_upgrade(self) -> None:
        """Sets up a parser for the body: llhttp takes what follows an Upgrade for another protocol, RFC 9110 (7.8) lets us ignore it."""
        framing = f"content-length: {self._left}" if self._phase == IN_LENGTH else "transfer-encoding: chunked"
        if self._phase == IN_HEAD:
            framing = "content-length: 0"
        self._parser = httptools.HttpRequestParser(self)
        self._muted = True
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode())

    # What llhttp calls. An exception ends its run, and comes out of feed_data as the context of its own.

    def on_message_begin(self) -> None:
        """A request starts. Refuses one inside another: both sides of the framing would have to be wrong."""
        if not self._muted and (self._phase != IN_HEAD or self._complete):
            raise Refused(400, "the request's framing is not valid")

    def on_headers_complete(self) -> None:
        """Checks the head and hands it over."""
        if self._muted:
            return
        start, *lines = self._head.decode("latin-1").strip("\r\n").split("\r\n")
        parts = start.split(" ")
        if len(parts) != 3:
            raise Refused(400, "the request line is not valid")
        method, target, version = parts[0], parts[1], VERSIONS.get(parts[2])
        if version is None:
            raise Refused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if len(lines) > self._limits.head_fields:
            raise Refused(431, "the request has too many headers")
        known = self._known
        headers = Headers([known.get(line) or self._learn(line) for line in lines])
        self._check_target(method, target)
        self._check_headers(headers, version)
        if "transfer-encoding" in headers:
            self._phase, self._overhead = IN_CHUNKS, 0
        elif length := int(headers.get("content-length") or 0):
            self._phase, self._left = IN_LENGTH, length
        scope = Scope(method=method, target=target, headers=headers, http_version=version, peer=self._peer)
        keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._receiver.request_begun(scope, keep_alive=keep_alive)

    def _learn(self, line: str) -> tuple[str, str]:
        """Splits a header line, and keeps it: most lines of a connection's requests are the same each time."""
        name, _, value = line.partition(":")
        field = (name.lower(), value.strip(" \t"))
        if len(line) <= KNOWN_CHARACTERS:
            if len(self._known) >= KNOWN_LINES:
                self._known.clear()
            self._known[line] = field
        return field

    def on_body(self, data: bytes) -> None:
        """Takes a piece of the body."""
        self._overhead = 0
        self._receiver.body_received(data)

    def on_message_complete(self) -> None:
        """A request ends, except the head of one with Upgrade, whose body is read by another parser."""
        if not self._muted and self._parser.should_upgrade():
            return
        self._muted = False
        self._phase = IN_HEAD
        self._head.clear()
        self._complete = True
        self._receiver.request_received()

    def _check_target(self, method: str, target: str) -> None:
        if len(target) > self._limits.target_bytes:
            raise Refused(414, "the request's target is too long")
        if method not in METHODS:
            raise Refused(501, "the method is not implemented")
        if not target.startswith("/") and "://" not in target and not (target == "*" and method == "OPTIONS"):
            raise Refused(400, "the target of the request is not valid")

    def _check_headers(self, headers: Headers, version: str) -> None:
        """Refuses what llhttp lets pass and HTTP does not."""
        if headers.repeated and any(len(headers.get_all(name)) > 1 for name in SINGLE):
            raise Refused(400, "a header that must be unique occurs twice")
        if version == "1.1" and "host" not in headers:
            raise Refused(400, "the Host header is missing")
        coding = headers.get("transfer-encoding")
        if coding is not None and version == "1.0":
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
        if coding is not None and coding.lower() != "chunked":
            raise Refused(501, "the only transfer coding is chunked")
        if "expect" in headers and headers["expect"].lower() != "100-continue":
            raise Refused(417, "the only expectation is 100-continue")


def _beginning_of_end(data: bytes) -> bytes:
    """Gives the longest end of the data that END starts with."""
    return next((END[:size] for size in (3, 2, 1) if data.endswith(END[:size])), b"")
