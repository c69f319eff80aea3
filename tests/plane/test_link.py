"""The link to one engine: which connection a call takes, when another is opened, what happens while none is there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from smg._ext import Call, Inbox
from smg.engine import EngineOptions, native
from smg.engine.native import Messages, NativeLink
from smg.errors import ConfigError, EngineError, EngineTimeout, EngineUnavailable
from smg.sim.processes import free_port
from tests.engine.fake import HOLD, serve
from tests.plane.conftest import Run
from tests.plane.peer import MAX_CONCURRENT_STREAMS, Peer, data, goaway, head, message, server, settings, trailer, until

PATH = "/s/Generate"


@contextlib.contextmanager
def linked(url: str, **options: object) -> Iterator[NativeLink]:
    link = NativeLink(url, options=EngineOptions(**options))  # type: ignore[arg-type]
    try:
        yield link
    finally:
        link.close()


@contextlib.asynccontextmanager
async def greeted() -> AsyncIterator[tuple[NativeLink, list[Peer]]]:
    """A link to a server that greets, and the server's side of each connection."""
    peers: list[Peer] = []

    def greet(peer: Peer) -> None:
        peers.append(peer)
        peer.send(settings())

    async with server(greet) as url:
        with linked(url) as link:
            yield link, peers


def mute(peer: Peer) -> None:
    """A port that is open and says nothing."""
    peer.polite = False


class Asked:
    """One call through a link."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, str]] = []
        self.call: Call | None = None

    async def ask(self, link: NativeLink, request: bytes = b"x", *, timeout_s: float = 10) -> "Asked":
        self.call = await link.call(PATH, request, Inbox(lambda _: None, lambda *end: self.ends.append(end)), timeout_s=timeout_s)
        return self


def test_goaway_moves_new_calls_to_a_new_connection(run: Run) -> None:
    async def scene() -> None:
        async with greeted() as (link, peers):
            old = await Asked().ask(link)
            await until(lambda: peers[0].streams)
            peers[0].send(goaway(1))
            connection = link._connection
            assert connection is not None
            await until(lambda: connection.leaving)
            new = await Asked().ask(link)
            await until(lambda: len(peers) == 2 and peers[1].streams)
            peers[1].send(head(1), trailer(1, 9))
            await until(lambda: new.ends == [(9, "")])
            peers[0].send(head(1), trailer(1))
            await until(lambda: old.ends == [(0, "")])
            await until(lambda: peers[0].closed and len(link._connections) == 1)

    run(scene())


def test_an_engine_that_limits_streams_gets_more_connections(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "CONNECTIONS_MAX", 3)

    async def scene() -> None:
        peers: list[Peer] = []

        def greet(peer: Peer) -> None:
            peers.append(peer)
            peer.send(settings({MAX_CONCURRENT_STREAMS: 2}))

        async with server(greet) as url:
            with linked(url) as link:
                asked = await asyncio.gather(*[Asked().ask(link) for _ in range(10)])
                await until(lambda: sum(len(peer.streams) for peer in peers) == 6)
                assert [len(peer.streams) for peer in peers] == [2, 2, 2]
                assert [connection.active for connection in link._connections] in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
                queued = [one for one in asked if not one.ends]
                assert len(queued) == 10
                peers[0].send(head(1), trailer(1))  # a place is free: a queued call takes it
                await until(lambda: len(peers[0].streams) == 3)
                for one in reversed(asked):  # the queued ones first: they are never sent
                    if one.call is not None:
                        one.call.cancel()
                await until(lambda: all(connection.active == 0 for connection in link._connections))
                assert sum(len(one.ends) for one in asked) == 1
                before = sum(len(peer.streams) for peer in peers)
                again = await Asked().ask(link)
                await until(lambda: sum(len(peer.streams) for peer in peers) > before)
                assert not again.ends

    run(scene())


def test_a_second_connection_that_fails_leaves_the_call_queued(run: Run) -> None:
    async def scene() -> None:
        peers: list[Peer] = []

        def greet(peer: Peer) -> None:
            peers.append(peer)
            if len(peers) == 1:
                peer.send(settings({MAX_CONCURRENT_STREAMS: 1}))
            else:
                peer.writer.close()

        async with server(greet) as url:
            with linked(url) as link:
                await Asked().ask(link)
                second = await Asked().ask(link)
                assert len(peers) == 2
                await until(lambda: len(peers[0].streams) == 1)
                peers[0].send(head(1), trailer(1))
                await until(lambda: len(peers[0].streams) == 2)
                peers[0].send(head(3), trailer(3))
                await until(lambda: second.ends == [(0, "")])

    run(scene())


def test_an_engine_that_leaves_at_once(run: Run) -> None:
    async def scene() -> None:
        peers: list[Peer] = []

        def greet(peer: Peer) -> None:
            peers.append(peer)
            peer.send(settings(), goaway(0))

        async with server(greet) as url:
            with linked(url) as link:
                with pytest.raises(EngineUnavailable):
                    await Asked().ask(link)
                assert len(peers) <= native.CONNECTIONS_MAX + 1

    run(scene())


def test_backoff_and_return(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        port = free_port()
        with linked(f"grpc://127.0.0.1:{port}") as link:
            for _ in range(4):
                with pytest.raises(EngineUnavailable):
                    await Asked().ask(link)
                await until(link._may_connect)
            monkeypatch.setattr(native, "BACKOFF_S", (1.0, 1.0))  # long enough for the next call on any machine
            with pytest.raises(EngineUnavailable) as caught:
                await Asked().ask(link)
            assert "connect:" in str(caught.value.detail)
            with pytest.raises(EngineUnavailable) as caught:
                await Asked().ask(link)
            assert "a moment ago" in str(caught.value.detail)
            async with server(lambda peer: peer.send(settings()), port=port):
                await until(link._may_connect)
                await Asked().ask(link)
                assert link._failures == 0

    run(scene())


def test_close_while_connecting(run: Run) -> None:
    async def scene() -> None:
        async with server(mute) as url:
            with linked(url) as link:
                waiting = [asyncio.ensure_future(Asked().ask(link)) for _ in range(3)]
                await until(lambda: link._connecting)
                waiting.pop().cancel()
                await asyncio.sleep(0)
                link.close()
                for task in waiting:
                    with pytest.raises(EngineUnavailable):
                        await task
                with pytest.raises(EngineUnavailable):
                    await Asked().ask(link)

    run(scene())


def test_everybody_leaves_while_connecting_fails(run: Run) -> None:
    async def scene() -> None:
        async with server(mute) as url:
            with linked(url, connect_timeout_s=0.3) as link:
                task = asyncio.ensure_future(Asked().ask(link))
                await until(lambda: link._connecting)
                task.cancel()
                await until(lambda: link._connecting is None)

    run(scene())


def test_the_deadline_counts_while_connecting(run: Run) -> None:
    async def scene() -> None:
        async with server(mute) as url:
            with linked(url, connect_timeout_s=300) as link, pytest.raises(EngineTimeout):
                await Asked().ask(link, timeout_s=0.05)

    run(scene())


def test_timeout_header() -> None:
    assert native._timeout(0.0001) == b"1m"
    assert native._timeout(1.5) == b"1500m"
    assert native._timeout(9.9999) == b"9999m"
    assert native._timeout(599.2) == b"600S"  # later than ours, never earlier
    assert native._timeout(7 * 24 * 3600) == b"604800S"
    assert native._timeout(1e300) == b"99999999S"


def test_a_slow_reader_holds_the_engine_back(run: Run) -> None:
    async def scene() -> None:
        async with greeted() as (link, peers):
            messages = Messages()
            call = await link.call(PATH, b"", messages.sink, timeout_s=30)
            messages.watch(call, timeout_s=30)
            await until(lambda: peers[0].streams)
            peers[0].send(head(1), *[data(1, message(b"%d" % i)) for i in range(3 * native.HELD_MESSAGES)])
            await until(lambda: messages._paused)
            for i in range(3 * native.HELD_MESSAGES):
                assert await messages.read() == b"%d" % i
            assert not messages._paused
            for _ in range(8):  # 8 MB of large messages, each given back as it is read
                peers[0].send(*[data(1, message(b"x" * 100_000))] * 2)
                await until(lambda: messages._messages)
                assert await messages.read() == await messages.read() == b"x" * 100_000
            peers[0].send(trailer(1))
            assert await messages.read() is None
            messages.cancel()

    run(scene())


def test_an_early_end_keeps_its_reason() -> None:
    async def scene() -> None:
        async with greeted() as (link, peers):
            messages = Messages()
            call = await link.call(PATH, b"", messages.sink, timeout_s=30)
            await until(lambda: peers[0].streams)
            peers[0].send(head(1), trailer(1, 14, "gone"))
            await until(lambda: messages.ended)
            messages.watch(call, timeout_s=0)
            await asyncio.sleep(0.01)
            with pytest.raises(EngineUnavailable):
                await messages.read()

    asyncio.run(scene())


def test_a_socket_in_the_file_system(run: Run, tmp_path: Path) -> None:
    async def scene() -> None:
        async with serve({"Generate": [b"one", b"two"]}, address=f"unix:{tmp_path}/engine") as fake:
            with linked(fake.url) as link:
                assert await answer(link) == [b"one", b"two"]

    run(scene())


async def answer(link: NativeLink, request: bytes = b"") -> list[bytes]:
    messages = Messages()
    messages.watch(await link.call(PATH, request, messages.sink, timeout_s=30), timeout_s=30)
    got = []
    while (one := await messages.read()) is not None:
        got.append(one)
    return got


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual tls"])
def test_tls(run: Run, certificates: Path, mutual: bool) -> None:
    big = b"answer" * 500_000

    async def scene() -> None:
        async with serve({"Generate": [b"one", big, b"two"]}, credentials=credentials(certificates, mutual=mutual)) as fake:
            trusting = {"ca_cert_path": str(certificates / "ca.pem")}
            own = {"client_cert_path": str(certificates / "client.pem"), "client_key_path": str(certificates / "client.key")}
            with linked(fake.url, **trusting, **(own if mutual else {})) as link:
                answers = await asyncio.gather(*[answer(link, b"request" * 300_000) for _ in range(3)])
                assert answers == [[b"one", big, b"two"]] * 3
                assert [body for _, body in fake.requests] == [b"request" * 300_000] * 3
            with linked(fake.url, **(trusting if mutual else {})) as link:  # without a certificate, or without trust
                with pytest.raises(EngineError) as caught:
                    await answer(link)
                assert isinstance(caught.value, EngineUnavailable)

    run(scene())


def test_tls_calls_are_cancelled_and_lost(run: Run, certificates: Path) -> None:
    async def scene() -> None:
        async with serve({"Generate": [b"one", HOLD]}, credentials=credentials(certificates)) as fake:
            with linked(fake.url, ca_cert_path=str(certificates / "ca.pem")) as link:
                asked = await Asked().ask(link)
                await until(lambda: len(fake.requests) == 1)
                assert asked.call is not None
                asked.call.cancel()
                await until(lambda: fake.cancelled == 1)
                held = await Asked().ask(link)
                await until(lambda: len(fake.requests) == 2)
        await until(lambda: held.ends)
        assert held.ends[0][0] == 14

    run(scene())


def test_tls_files_that_cannot_be_used(certificates: Path) -> None:
    async def scene() -> None:
        for options in ({"ca_cert_path": "/nowhere"}, {"client_cert_path": str(certificates / "client.pem")}):
            async with serve({}, credentials=credentials(certificates)) as fake:
                with linked(fake.url, **options) as link, pytest.raises(ConfigError):
                    await Asked().ask(link)

    asyncio.run(scene())


def test_tls_to_a_port_without_it(run: Run, certificates: Path) -> None:
    async def scene() -> None:
        async with server(lambda peer: peer.send(settings())) as url:
            with linked(url.replace("grpc:", "grpcs:"), connect_timeout_s=5) as link, pytest.raises(EngineUnavailable):
                await Asked().ask(link)

    run(scene())


def credentials(folder: Path, *, mutual: bool = False) -> grpc.ServerCredentials:
    pair = ((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes() if mutual else None, mutual)
