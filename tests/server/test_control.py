"""The control process's listeners: metrics and probes over HTTP, calls over the UNIX socket."""

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from smg.errors import ControlUnavailable, EngineError
from smg.server.admin import AdminServer, call
from smg.server.listen import listen_tcp, listen_unix
from smg.server.probe import ProbeServer


def probed(scene: Callable[[tuple[str, int]], Awaitable[None]]) -> None:
    async def main() -> None:
        server = ProbeServer({"/metrics": lambda: (200, "text/plain", b"x 1\n")})
        with listen_tcp("127.0.0.1", 0, backlog=8, setting="test") as listener:
            address = listener.getsockname()
            await server.start(listener)
            await scene(address)
            server.close()

    asyncio.run(main())


async def ask(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


def test_a_page_is_served() -> None:
    async def scene(address: tuple[str, int]) -> None:
        answer = await ask(address, b"GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nx 1\n")
        head = await ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert head.endswith(b"content-length: 4\r\nconnection: close\r\n\r\n")

    probed(scene)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET /other HTTP/1.1", 404), (b"POST /metrics HTTP/1.1", 405), (b"GET /metrics", 400), (b"\xff\x00 x y z", 400), (b"", 400)],
)
def test_other_requests_are_refused(request_line: bytes, status: int) -> None:
    async def scene(address: tuple[str, int]) -> None:
        assert (await ask(address, request_line + b"\r\n\r\n")).startswith(b"HTTP/1.1 %d " % status)

    probed(scene)


def test_a_head_without_end_is_cut() -> None:
    async def scene(address: tuple[str, int]) -> None:
        with contextlib.suppress(ConnectionError):
            assert await ask(address, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000) == b""
        assert (await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

    probed(scene)


def served(folder: pathlib.Path, scene: Callable[[pathlib.Path], Awaitable[None]]) -> None:
    async def main() -> None:
        def refuse(data: msgspec.Raw) -> object:
            raise EngineError("no")

        server = AdminServer({"echo": lambda data: msgspec.msgpack.decode(data), "refuse": refuse})
        path = folder / "control.sock"
        with listen_unix(path) as listener:
            assert path.stat().st_mode & 0o777 == 0o600
            await server.start(listener)
            await scene(path)
            server.close()

    asyncio.run(main())


def test_calls_are_answered(tmp_path: pathlib.Path) -> None:
    async def scene(path: pathlib.Path) -> None:
        data = {"a": [1, "x" * 100_000]}
        assert msgspec.msgpack.decode(await call(path, "echo", data)) == data
        with pytest.raises(EngineError, match=r"^no$"):
            await call(path, "refuse")
        with pytest.raises(EngineError, match="no method 'other'"):
            await call(path, "other")

    served(tmp_path, scene)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1", b"\x00\x00\x00\x01\x80", b"\x00"])
def test_what_is_no_call_closes_the_connection_alone(tmp_path: pathlib.Path, data: bytes) -> None:
    async def scene(path: pathlib.Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()
        assert msgspec.msgpack.decode(await call(path, "echo", 1)) == 1

    served(tmp_path, scene)


def test_a_control_process_that_is_away_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ControlUnavailable, match="does not answer"):
        asyncio.run(call(tmp_path / "none.sock", "echo"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(ControlUnavailable, match="does not answer"):
            asyncio.run(call(tmp_path / "silent.sock", "echo", timeout_s=0.1))
