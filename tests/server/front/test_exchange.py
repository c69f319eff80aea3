"""Requests and responses over a socket, where nobody misbehaves: framing, order, persistence, and what RSGI promises."""

import asyncio

import msgspec
import pytest

from tests.server.front.support import BOUND_S, place, request, responses, run


def ask(*pieces, **options):
    """What a fresh server sends for these bytes until it closes, and its application."""

    async def main():
        async with place(**options) as served:
            return await served.send(*pieces), served.app

    raw, app = run(main())
    return responses(raw), app


def test_a_body_and_an_echo():
    [(status, headers, body)], _ = ask(request("/echo/%41?a=%20&b", b"hello", "X: y"))
    assert status == 200
    assert headers == {"content-type": "text/plain", "content-length": str(len(body)), "connection": "close"}
    assert body == b"POST /echo/A a=%20&b y hello"


def test_keep_alive_and_pipelining_keep_the_order():
    many = [request(f"/echo/{number}", b"%d" % number, close=False) for number in range(20)]
    found, app = ask(b"".join(many) + request("/empty"))
    assert [body.split()[-1] for _, _, body in found[:-1]] == [b"%d" % number for number in range(20)]
    assert all("connection" not in headers for _, headers, _ in found[:-1])
    assert found[-1] == (204, {"connection": "close"}, b"")
    assert app.seen == [b"%d" % number for number in range(20)]


def test_every_byte_apart_gives_the_same():
    data = request("/echo", b"hello", "X: y", close=False) + request("/stream")
    whole, _ = ask(data)
    assert ask(*[data[at : at + 1] for at in range(len(data))])[0] == whole
    assert whole[1][2] == "onetwoé".encode()


def test_one_request_at_a_time():
    async def main():
        async with place() as served, served.client() as (reader, writer):
            writer.write(request("/hang", close=False) + request("/echo", b"later"))
            await asyncio.sleep(0.05)
            assert served.app.seen == []
            served.app.release.set()
            return responses(await asyncio.wait_for(reader.read(), BOUND_S))

    assert [body for _, _, body in run(main())] == [b"done", b"POST /echo  later".replace(b"  ", b"   ")]


@pytest.mark.parametrize("path", ["/echo", "/pieces"])
def test_chunked_bodies(path):
    chunked = (
        f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
        + b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: r\r\n\r\n"
    )
    [(status, _, _)], app = ask(chunked)
    assert (status, app.seen) == (200, [b"abcde"])


def test_a_long_body_is_held_up_and_comes_whole():
    body = bytes(range(256)) * 20000
    [(_, _, answer)], app = ask(request("/pieces", body))
    assert answer == b"5120000"
    assert app.seen == [body]
    assert ask(request("/echo", body))[1].seen == [body]


def test_head_has_the_length_and_no_body():
    async def main():
        async with place() as served:
            return await served.send(
                request("/echo", method="HEAD", close=False) + request("/stream", method="HEAD", close=False) + request("/empty")
            )

    heads = run(main()).split(b"\r\n\r\n")
    assert b"content-length: 13" in heads[0]
    assert b"transfer-encoding: chunked" in heads[1]
    assert heads[2].startswith(b"HTTP/1.1 204")
    assert heads[3] == b""


def test_http_1_0():
    assert ask(b"GET / HTTP/1.0\r\n\r\n")[0][0][1]["connection"] == "close"
    found, _ = ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
    assert [headers["connection"] for _, headers, _ in found] == ["keep-alive", "close"]

    async def main():
        async with place() as served:
            return await served.send(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    head, _, body = run(main()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == "onetwoé".encode()


def test_continue_is_sent_when_the_body_is_wanted():
    async def main():
        async with place() as served:
            async with served.client() as (reader, writer):
                writer.write(request("/echo", b"x", "Expect: 100-continue")[:-1])
                assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND_S) == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(b"x")
                first = await asyncio.wait_for(reader.read(), BOUND_S)
            refused = await served.send(request("/deaf", b"x", "Expect: 100-continue", close=False)[:-1])
            unneeded = await served.send(request("/echo", b"x", "Expect: 100-Continue"))
            return first, refused, unneeded

    first, refused, unneeded = (responses(raw) for raw in run(main()))
    assert (len(first), first[0][0]) == (1, 200)
    assert [(status, headers["connection"]) for status, headers, _ in refused] == [(413, "close")]
    assert [status for status, _, _ in unneeded] == [200]


def test_upgrade_is_ignored():
    data = request("/echo", b"x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ", close=False)
    [(status, headers, body)], _ = ask(data)
    assert (status, headers["connection"], body[-2:]) == (200, "close", b" x")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\x03", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70000, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 128 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nExpect: x\r\n\r\n", 417),
    ],
)
def test_a_refusal_is_an_error_of_openais_shape(data, status):
    found, app = ask(request("/echo", b"fine", close=False) + data)
    assert [each[0] for each in found] == [200, status]
    assert found[1][1]["connection"] == "close"
    error = msgspec.json.decode(found[1][2])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert app.seen == [b"fine"]


def test_a_malformed_chunk_reaches_the_application():
    head = b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    found, app = ask(head + b"1\r\na\r\n", b"zz\r\n")
    assert [(status, headers["connection"]) for status, headers, _ in found] == [(500, "close")]
    assert app.seen == []


def test_an_application_that_gives_no_response_or_fails():
    assert [status for status, _, _ in ask(request("/nothing", close=False) + request("/boom"))[0]] == [500, 500]
    assert msgspec.json.decode(ask(request("/nothing"))[0][0][2])["error"]["code"] == "internal_error"


def test_the_first_response_wins():
    assert ask(request("/twice"))[0] == [(200, {"content-length": "5", "connection": "close"}, b"first")]


def test_a_header_cannot_hold_a_line_break():
    found, app = ask(request("/split"))
    assert found == [(200, {"content-length": "5", "connection": "close"}, b"clean")]
    assert len(app.errors) == 1


def test_a_stream_that_fails_is_cut():
    async def main():
        async with place() as served:
            return await served.send(request("/broken"))

    raw = run(main())
    assert not raw.endswith(b"0\r\n\r\n")


def test_scope():
    _, app = ask(request("http://name:80/scope", b"", "X: caf\xe9", "x: two", "B:\t c \t"))
    authority, client, server, scheme, version, headers = app.seen[0]
    assert (authority, scheme, version) == ("name:80", "http", "1.1")
    assert client.startswith("127.0.0.1:")
    assert server.startswith("127.0.0.1:")
    assert client != server
    assert headers[:1] == [("host", "h")]
    assert ("b", "c") in headers
    assert [value for name, value in headers if name == "x"][1] == "two"


def test_the_date_is_that_of_today():
    async def main():
        async with place() as served:
            return await served.send(request())

    raw = run(main())
    assert raw.count(b"\r\ndate: ") == 1
    assert b"GMT\r\n" in raw
    assert b"server" not in raw
