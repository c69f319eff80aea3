"""Both bodies of a streamed response write the same bytes, whatever the kernel takes of them, and never touch a socket that is lost."""

import asyncio
import socket

import pytest
import uvloop

from smg._ext import NativeStream
from smg.server.front.stream import PlainStream
from tests.server.front.support import BOUND_S

BODIES = pytest.mark.parametrize("body", [PlainStream, NativeStream])


class Link:
    gone = closed = False
    write_paused = False
    full = False

    def give_up_if_full(self):
        return self.full


class Keeper(asyncio.Protocol):
    """Keeps a transport, and tells whether its socket is still open when it is lost."""

    def connection_made(self, transport):
        self.transport = transport
        self.lost = asyncio.get_running_loop().create_future()
        self.socket = transport.get_extra_info("socket")

    def connection_lost(self, error):
        self.lost.set_result(self.socket.fileno())
        self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)


def run(scenario):
    """Runs `scenario(transport, peer's blocking socket, protocol)` in a loop of its own."""

    async def main():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(BOUND_S)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_unix_connection(Keeper, sock=ours)
        try:
            return await scenario(transport, theirs, protocol)
        finally:
            transport.abort()
            theirs.close()
            await asyncio.wait_for(protocol.lost, BOUND_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def read(peer, size):
    data = b""
    while len(data) < size:
        data += peer.recv(65536)
    return data


@BODIES
@pytest.mark.parametrize("sizes", [[1], [15, 16, 17], [70_000, 1, 5], [1] * 300, [4095, 65536, 200_000, 3]])
@pytest.mark.parametrize("chunked", [True, False])
def test_bytes(body, sizes, chunked):
    chunks = [bytes([65 + i % 26]) * size for i, size in enumerate(sizes)]
    wanted = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk for chunk in chunks)

    async def scenario(transport, peer, protocol):
        transport.write(b"head;")
        stream = body(Link(), transport, on_end=lambda: None, fd=protocol.socket.fileno(), chunked=chunked)
        reading = asyncio.create_task(asyncio.to_thread(read, peer, len(b"head;" + wanted)))
        for i, chunk in enumerate(chunks):
            assert stream.write(chunk)
            if i % 3 == 2:
                await asyncio.sleep(0)
        assert stream.count == len(chunks)
        return await reading

    assert run(scenario) == b"head;" + wanted


@BODIES
def test_nothing_is_written_for_nobody(body):
    async def scenario(transport, peer, protocol):
        link, ends = Link(), []
        stream = body(link, transport, on_end=lambda: ends.append(1), fd=protocol.socket.fileno())
        assert stream.write(b"")
        link.write_paused = True
        assert stream.write(b"a")
        link.full = True
        assert not stream.write(b"b")
        link.write_paused, link.gone = False, True
        assert not stream.write(b"c")
        link.gone = False
        silent = body(link, transport, on_end=lambda: ends.append(2), fd=protocol.socket.fileno(), silent=True)
        assert silent.write(b"d")
        stream.close()
        stream.close()
        assert not stream.write(b"e")
        nobody = body(None, None, on_end=lambda: ends.append(3))
        assert not nobody.write(b"f")
        nobody.close()
        assert (ends, stream.count, silent.count) == ([1], 1, 0)
        await asyncio.sleep(0)
        return await asyncio.to_thread(peer.recv, 100)

    assert run(scenario) == b"1\r\na\r\n0\r\n\r\n"


@BODIES
def test_a_peer_that_has_gone_is_the_transports_to_find(body):
    async def scenario(transport, peer, protocol):
        stream = body(Link(), transport, on_end=lambda: None, fd=protocol.socket.fileno())
        peer.close()
        stream.write(b"x")
        return await asyncio.wait_for(asyncio.shield(protocol.lost), BOUND_S)

    assert run(scenario) >= 0  # the number was still its own when the loss was told


@BODIES
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("last", [b"", b"z", b"z" * 200_000])
def test_the_end_comes_with_the_last_chunk(body, chunked, last):
    wanted = b"a" + last if not chunked else b"1\r\na\r\n" + (b"%x\r\n%b\r\n" % (len(last), last) if last else b"") + b"0\r\n\r\n"

    async def scenario(transport, peer, protocol):
        link, ends = Link(), []
        stream = body(link, transport, on_end=lambda: ends.append(1), fd=protocol.socket.fileno(), chunked=chunked)
        reading = asyncio.create_task(asyncio.to_thread(read, peer, len(wanted)))
        stream.write(b"a")
        stream.close(last)
        lost = body(link, transport, on_end=lambda: ends.append(2), fd=protocol.socket.fileno(), chunked=chunked)
        link.closed = True
        lost.close(b"x")
        assert ends == [1, 2]
        return await reading

    assert run(scenario) == wanted


@BODIES
@pytest.mark.parametrize("silent", [True, False])
def test_the_head_leaves_with_the_first_chunk(body, silent):
    async def scenario(transport, peer, protocol):
        streams = [
            body(Link(), transport, on_end=lambda: None, fd=protocol.socket.fileno(), head=b"head%d;" % i, silent=silent) for i in range(2)
        ]
        assert streams[0].write(b"a")
        assert streams[0].write(b"b")
        streams[0].close()
        streams[1].close(b"c")
        transport.write(b".")
        data = b""
        while not data.endswith(b"."):
            data += await asyncio.to_thread(peer.recv, 100)
        return data

    wanted = b"head0;head1;." if silent else b"head0;1\r\na\r\n1\r\nb\r\n0\r\n\r\nhead1;1\r\nc\r\n0\r\n\r\n."
    assert run(scenario) == wanted
