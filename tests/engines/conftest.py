"""Fixtures of the tests against real engines: the engine and a gateway in front of it, started once a run."""

import pathlib
import sys
from collections.abc import Iterator

import grpc
import openai
import pytest

from smg.pb import mlx_engine_pb2, mlx_engine_pb2_grpc
from smg.sim.processes import Child, free_port, gateway_command, wait_http
from tests.e2e.fleet import Gateway

SET_UP_WITHIN_S = 900.0


class MlxProbe:
    """The engine as seen past the gateway."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address.removeprefix("grpc://"), options=[("grpc.enable_http_proxy", 0)])
        self.stub = mlx_engine_pb2_grpc.MlxEngineStub(self.channel)

    def active_requests(self) -> int:
        """How many requests the engine says it works on."""
        return int(self.stub.GetServerInfo(mlx_engine_pb2.GetServerInfoRequest(), timeout=10).active_requests)


@pytest.fixture(scope="session")
def mlx_address() -> Iterator[str]:
    """Address of a running MLX engine."""
    script = pathlib.Path(__file__).with_name("mlx_engine.py")
    with Child("mlx", command=[sys.executable, str(script)]) as child:
        yield child.wait_ready(within_s=SET_UP_WITHIN_S)


@pytest.fixture(scope="session")
def mlx(mlx_address: str) -> Iterator[MlxProbe]:
    """A way past the gateway to that engine."""
    probe = MlxProbe(mlx_address)
    with probe.channel:
        yield probe


@pytest.fixture(scope="session")
def gateway(mlx_address: str) -> Iterator[Gateway]:
    """A gateway in front of it."""
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    with Child("gateway", command=gateway_command(port=port, engines=[mlx_address], flags=("--workers", "1"))) as child:
        wait_http(child, url=f"{base_url}/readiness", within_s=60)
        yield Gateway(child, base_url=base_url, engines=[])


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """The openai SDK, pointed at the gateway."""
    with gateway.openai(timeout_s=60) as made:
        yield made


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    """The name of the one model that is served."""
    [card] = client.models.list().data
    return card.id
