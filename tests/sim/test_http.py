"""The simulator's HTTP server: its end."""

import asyncio
import socket

from smg.sim.http import HttpRequest, HttpServer, Reply
from tests.sim.client import until


def test_nobody_who_does_not_read_outlives_the_server() -> None:
    async def much(request: HttpRequest, reply: Reply) -> None:
        await reply.send(bytes(100_000_000))

    async def run() -> None:
        server = HttpServer(much)
        port = await server.start("127.0.0.1", port=0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: any(connection.task for connection in server.connections))
            await server.close()
            assert not server.connections

    asyncio.run(run())
