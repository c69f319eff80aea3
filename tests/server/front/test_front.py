"""The front as a whole: sockets of all kinds, shared ones too, and an orderly end."""

import asyncio
import errno
import os
import socket

import pytest

from smg.config import Config
from smg.server.front import Front
from tests.server.front.support import BOUND_S, App, contexts, place, request, responses, run, until


def test_unix_socket(tmp_path):
    async def main():
        async with place(path=tmp_path / "s") as served:
            return responses(await served.send(request("/scope"))), served.app.seen

    found, seen = run(main())
    assert found[0][0] == 200
    assert seen[0][1] == ""


def test_tls(certificate):
    async def main():
        server, client = contexts(certificate)
        async with place(tls=server) as served, served.client(ssl=client) as (reader, writer):
            writer.write(request("/scope", close=False))
            await asyncio.wait_for(reader.readuntil(b"none"), BOUND_S)
            writer.write(request("/stream", close=False) + request("/echo", bytes(3_000_000)))
            found = responses(await asyncio.wait_for(reader.read(), BOUND_S))
            assert served.app.seen[0][3] == "https"
            await served.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            return found

    stream, echo = run(main())
    assert stream[2] == "onetwoé".encode()
    assert len(echo[2]) > 3_000_000


def test_a_tls_client_that_leaves_is_noticed(certificate):
    async def main():
        server, client = contexts(certificate)
        async with place(tls=server) as served, served.client(ssl=client) as (_, writer):
            writer.write(request("/hang"))
            await until(lambda: served.front._tasks)
            writer.close()
            await until(lambda: served.app.left)

    run(main())


def test_nagle_is_off():
    async def main():
        async with place() as served, served.client() as (reader, writer):
            writer.write(request(close=False))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND_S)
            [connection] = served.front._connections
            return connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert run(main())


def test_drain():
    async def main():
        async with place() as served, served.client() as idle, served.client() as fresh, served.client() as busy, served.client() as half:
            idle[1].write(request(close=False))
            await asyncio.wait_for(idle[0].readuntil(b"\r\n\r\n"), BOUND_S)
            busy[1].write(request("/hang", close=False) + request(close=False))
            half[1].write(request(close=False)[:-2])
            await until(lambda: served.front._tasks and len(served.front._connections) == 4)
            await until(lambda: any(each._reader.begun for each in served.front._connections))
            draining = asyncio.ensure_future(served.front.drain(BOUND_S))
            await asyncio.wait_for(idle[0].read(), BOUND_S)
            assert await asyncio.wait_for(fresh[0].read(), BOUND_S) == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", served.address)
            half[1].write(b"\r\n")
            [late] = responses(await asyncio.wait_for(half[0].read(), BOUND_S))
            assert not draining.done()
            served.app.release.set()
            [last] = responses(await asyncio.wait_for(busy[0].read(), BOUND_S))
            assert await draining is True
            return late, last

    late, last = run(main())
    assert (late[0], late[1]["connection"]) == (200, "close")
    assert (last[1]["connection"], last[2]) == ("close", b"done")


def test_who_was_told_nothing_has_one_more_request():
    """A stream that began before `say_close` ends without a word of it: a request behind it must not be lost."""

    async def main():
        async with place() as served, served.client() as late, served.client() as both:
            late[1].write(request("/halves", close=False))
            both[1].write(request("/halves", close=False) + request(close=False) + request(close=False))
            for reader, _ in (late, both):
                await asyncio.wait_for(reader.readuntil(b"one"), BOUND_S)
            served.front.say_close()
            served.app.release.set()
            await asyncio.wait_for(late[0].readuntil(b"0\r\n\r\n"), BOUND_S)
            late[1].write(request(close=False))
            [after] = responses(await asyncio.wait_for(late[0].read(), BOUND_S))
            await asyncio.wait_for(both[0].readuntil(b"0\r\n\r\n"), BOUND_S)
            [behind] = responses(await asyncio.wait_for(both[0].read(), BOUND_S))
            assert await served.front.drain(BOUND_S)
            return after, behind

    for status, headers, _ in run(main()):
        assert (status, headers["connection"]) == (200, "close")


def test_a_drain_that_takes_too_long_and_the_cut():
    async def main():
        async with place() as served, served.client() as (reader, writer):
            writer.write(request("/hang"))
            await until(lambda: served.front._tasks)
            assert await served.front.drain(0.05) is False
            served.front.close()
            assert await asyncio.wait_for(reader.read(), BOUND_S) == b""
            await until(lambda: not served.front._tasks)

    run(main())


def test_a_socket_shared_by_processes():
    """Two fronts on one listening socket, as after a fork: one goes on when the other stops."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]

    async def main():
        loop = asyncio.get_running_loop()
        fronts = [Front(App(), config=Config(), loop=loop) for _ in range(2)]
        await fronts[0].serve(sock)
        await fronts[1].serve(socket.socket(fileno=os.dup(sock.fileno())))
        fronts[0].close()
        await asyncio.sleep(0)
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request())
            assert await asyncio.wait_for(reader.read(), BOUND_S)
            writer.close()
        fronts[1].close()
        await until(lambda: not fronts[1]._connections)

    run(main())


def test_a_burst_of_connections_is_taken_one_a_wakeup():
    """Who shares the listening socket must find some of them left."""

    async def main():
        async with place() as served:
            clients = [socket.create_connection(("127.0.0.1", served.address)) for _ in range(20)]
            [acceptor] = served.front._acceptors
            while not acceptor._opening:  # the kernel may need a moment until the first can be taken
                acceptor._take()
            taken = len(acceptor._opening)
            await until(lambda: len(served.front._connections) == len(clients))
            for client in clients:
                client.close()
            return taken

    assert run(main()) == 1


def test_a_process_without_room_takes_connections_later(monkeypatch):
    async def main():
        async with place() as served:
            acceptor = served.front._acceptors[0]
            listener, tries = acceptor._sock, []

            class Full:
                def fileno(self):
                    return listener.fileno()

                def accept(self):
                    tries.append(1)
                    if len(tries) == 1:
                        raise OSError(errno.EMFILE, "full")
                    return listener.accept()

                def close(self):
                    listener.close()

            monkeypatch.setattr("smg.server.front.acceptor.FULL_PAUSE_S", 0.01)
            acceptor._sock = Full()
            return responses(await served.send(request("/scope"))), len(tries)

    found, tries = run(main())
    assert found[0][0] == 200
    assert tries >= 2


def test_a_fuller_process_waits_a_moment_for_the_others():
    async def main():
        async with place() as served:
            [acceptor] = served.front._acceptors
            acceptor._is_fuller = lambda: True
            with socket.create_connection(("127.0.0.1", served.address)):
                acceptor._take()
                assert not acceptor._opening
                while not acceptor._opening:  # nobody else takes it; the kernel may need a moment
                    acceptor._take()
                assert len(acceptor._opening) == 1
            return responses(await served.send(request("/scope")))

    assert run(main())[0][0] == 200
