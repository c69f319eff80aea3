"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.fleet import Fleet, Gateway, fleet

PROTOCOLS = ("vllm", "sglang", "trtllm", "mlx", "tokenspeed")
SIM_FLAGS = ("--allow-scripts", "--output", "text", "--text", "Grüße aus Köln: 你好 🙂 and so on.")


@pytest.fixture(scope="module")
def module_fleet() -> Iterator[Fleet]:
    """A fleet that the tests of a file share."""
    with fleet() as made:
        yield made


@pytest.fixture
def own_fleet() -> Iterator[Fleet]:
    """A fleet for one test, which may break it."""
    with fleet() as made:
        yield made


@pytest.fixture(scope="module", params=PROTOCOLS)
def each_protocol(request: pytest.FixtureRequest, module_fleet: Fleet) -> Gateway:
    """A gateway in front of one engine, for each engine protocol. Prompts may carry `[[sim: …]]` markers."""
    return module_fleet.launch(request.param, sim_flags=SIM_FLAGS)


@pytest.fixture(scope="module")
def gateway(module_fleet: Fleet) -> Gateway:
    """A gateway in front of one engine. Prompts may carry `[[sim: …]]` markers; faults that they ask for do not add up."""
    return module_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "1", "--disable-circuit-breaker"))


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """The openai SDK, pointed at `gateway`."""
    with gateway.openai() as made:
        yield made
