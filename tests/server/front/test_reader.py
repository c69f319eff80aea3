"""The reader alone: the same events however the bytes are cut, and nothing accepted that two servers could read in two ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg.server.front import Limits
from smg.server.front.reader import Refused, RequestReader
from smg.server.front.scope import Peer

POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Log:
    """Writes down what a reader tells; pieces of a body are joined."""

    def __init__(self):
        self.events = []

    def request_begun(self, scope, *, keep_alive):
        self.events.append((scope.method, scope.path, scope.query_string, scope.headers.items(), scope.http_version, keep_alive))
        self.body = b""

    def body_received(self, data):
        self.body += data

    def request_received(self):
        self.events.append(self.body)


def read(pieces, limits=None):
    """Feeds pieces, going on behind each request as a connection does; gives the events, and the refusal that ended them if any."""
    log = Log()
    reader = RequestReader(log, peer=Peer("c", "s", "http"), limits=limits or Limits())
    for piece in pieces:
        rest = piece
        while rest:
            try:
                rest = reader.feed(rest)
            except Refused as refused:
                return [*log.events, refused.status]
    return log.events


def cut(data, sizes):
    """Cuts data at the given sizes, the last piece being the rest."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return [*[piece for piece in pieces if piece], data[start:]]


LENGTH_BODY = b"\r\n\r\nGET / HT"
STREAM = (
    b"\r\n"
    + POST
    + b"X:  a b \r\nContent-Length: 12\r\n\r\n"
    + LENGTH_BODY
    + CHUNKED
    + b"4;x=y\r\nab\r\r\r\n6\r\n\r\n\r\n\r\n\r\n0\r\nT: r\r\n\r\n"
    + b"GET /%41?b=%20 HTTP/1.1\r\nHost: h\r\n\r\n"
    + b"HEAD http://h/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    + CHUNKED
    + b"0\r\n\r\n"
    + b"OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n"
    + POST
    + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\nabc"
)


def test_the_events_of_a_pipeline():
    events = read([STREAM])
    bodies = [event for event in events if isinstance(event, bytes)]
    heads = [event for event in events if isinstance(event, tuple)]
    assert bodies == [LENGTH_BODY, b"ab\r\r\r\n\r\n\r\n", b"", b"", b"", b"", b"abc"]
    assert [head[0] for head in heads] == ["POST", "POST", "GET", "HEAD", "POST", "OPTIONS", "POST"]
    assert heads[0][3] == [("host", "h"), ("x", "a b"), ("content-length", "12")]
    assert heads[2][1:3] == ("/A", "b=%20")
    assert heads[3][1] == "/x"
    assert [head[5] for head in heads] == [True] * 6 + [False]


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"\r\n"]
)
def test_upgrade_is_ignored_and_the_body_read(framing):
    data = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + framing
    whole = read([data])
    assert whole[1:] == [b"" if framing == b"\r\n" else b"abc"]
    assert whole[0][5] is False
    assert read([data[at : at + 1] for at in range(len(data))]) == whole


def test_every_cut_gives_the_same():
    whole = read([STREAM])
    assert read([STREAM[at : at + 1] for at in range(len(STREAM))]) == whole
    for at in range(1, len(STREAM)):
        assert read([STREAM[:at], STREAM[at:]]) == whole


@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from([b"\r\n\r\n", b"\r", b"\n0\r\n\r\n", b"0\r\n\r\n"]))),
    st.lists(st.integers(1, 30), max_size=60),
    st.sampled_from([b"", b";a=b", b';q="x y"']),
)
def test_chunked_bodies_in_random_pieces(chunks, sizes, extension):
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks) + b"0\r\n\r\n"
    events = read(cut(CHUNKED + framed + CHUNKED + framed, sizes))
    assert events[1::2] == [b"".join(chunks)] * 2
    assert len(events) == 4


@given(st.lists(st.binary(max_size=60), max_size=4), st.lists(st.integers(1, 30), max_size=60))
def test_bodies_of_known_length_in_random_pieces(bodies, sizes):
    data = b"".join(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies)
    assert read(cut(data, sizes))[1::2] == bodies


@given(st.binary(max_size=200), st.lists(st.integers(1, 30), max_size=20))
def test_garbage_ends_the_same_whatever_the_cut(garbage, sizes):
    data = b"GET / HTTP/1.1\r\nHost: h\r\n" + garbage
    assert read(cut(data, sizes)) == read([data])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400),
        (POST + b"Content-Length: 1, 1\r\n\r\na", 400),
        (POST + b"Content-Length: +1\r\n\r\na", 400),
        (POST + b"Content-Length: -1\r\n\r\na", 400),
        (POST + b"Content-Length: 0x1\r\n\r\na", 400),
        (POST + b"Content-Length: 1 2\r\n\r\na", 400),
        (POST + b"Content-Length:\r\n\r\na", 400),
        (POST + b"Content-Length: 99999999999999999999\r\n\r\na", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n", 400),
        (POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n", 400),
        (POST + b" Transfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"X: a\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"X: a\x00b\r\n\r\n", 400),
        (POST + b"X\x00: a\r\n\r\n", 400),
        (POST + b": a\r\n\r\n", 400),
        (POST + b"X\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + b"Host: other\r\n\r\n", 400),
        (POST + b"HOST: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"OPTIONS / RTSP/1.0\r\nHost: h\r\n\r\n", 505),
        (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /\x80 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (POST + b"Expect: miracle\r\n\r\n", 417),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00" * 10, 400),
    ],
)
def test_refused_before_anybody_hears_of_it(data, status):
    assert read([data]) == [status]
    assert read([data[at : at + 1] for at in range(len(data))]) == [status]


@pytest.mark.parametrize(
    "framed",
    [
        b"1\na\r\n",
        b"1\r\na0\r\n",
        b"1 \r\na\r\n",
        b"0x1\r\na\r\n",
        b"-1\r\na",
        b"\r\n",
        b"fffffffffffffffff\r\na",
        b"1;a\nb\r\na",
        b"g\r\n",
    ],
)
def test_malformed_chunks(framed):
    events = read([CHUNKED + framed])
    assert events[-1] == 400
    assert len(events) == 2
    assert read([(CHUNKED + framed)[at : at + 1] for at in range(len(CHUNKED + framed))]) == events


def test_a_trailer_cannot_reframe():
    assert read([CHUNKED + b"0\r\nContent-Length: 5\r\nHost: evil\r\n\r\n"])[-1] == 400
    events = read([CHUNKED + b"0\r\nX: evil\r\n\r\n"])
    assert ("x", "evil") not in events[0][3]


LIMITS = Limits(head_bytes=1000, target_bytes=200, head_fields=10)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 199 + b" HTTP/1.1\r\nHost: h\r\n\r\n", None),
        (b"GET /" + b"a" * 200 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET /" + b"a" * 5000, 414),
        (POST + b"X: " + b"a" * (1000 - len(POST) - 7) + b"\r\n\r\n", None),
        (POST + b"X: " + b"a" * (1001 - len(POST) - 7) + b"\r\n\r\n", 431),
        (POST + b"X: " + b"a" * 5000, 431),
        (POST + b"X" * 5000, 431),
        (POST + b"X: a\r\n" * 9 + b"\r\n", None),
        (POST + b"X: a\r\n" * 10 + b"\r\n", 431),
        (b"\r\n" * 5000, 431),
        (CHUNKED + b"1;" + b"a" * 5000, 431),
        (CHUNKED + b"0\r\n" + b"X: a\r\n" * 1000, 431),
    ],
)
def test_limits(data, status):
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))], [data[at : at + 7] for at in range(0, len(data), 7)]):
        events = read(pieces, LIMITS)
        assert (events[-1] if isinstance(events[-1], int) else None) == status


def test_an_endless_trailer_after_data():
    """Within one read the limit is not exact: it is that of the read."""
    data = CHUNKED + b"1\r\na\r\n0\r\nX: " + b"a" * 5000
    assert read([data[at : at + 7] for at in range(0, len(data), 7)], LIMITS)[-1] == 431


def test_extensions_of_many_small_chunks_are_no_overhead():
    body = b"1;" + b"a" * 600 + b"\r\nx\r\n"
    assert read([CHUNKED + body * 50 + b"0\r\n\r\n"], LIMITS)[-1] == b"x" * 50
