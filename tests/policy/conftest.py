"""What tests of policies share: a block of shared memory, and policies that are made on it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy import Candidate, Candidates, Policy, build_policy
from tests.shm.memory import shared_memory

Make = Callable[..., Policy]


@pytest.fixture
def shm() -> Shm:
    return Shm(shared_memory(rows=3, prefix_blocks=8192, sticky_keys=4096))


@pytest.fixture
def make(shm: Shm) -> Make:
    """Gives a policy by its name; settings as in the tree."""

    def build(name: str, **settings: Any) -> Policy:
        return build_policy(msgspec.structs.replace(Routing(), policy=name, **settings), shm=shm)

    return build


@pytest.fixture
def fleet() -> Callable[..., Candidates]:
    """Gives candidates with slots 3, 5, 7, … as after removals."""

    def build(size: int, *, load: int = 0) -> Candidates:
        return Candidates([Candidate(3 + 2 * i, f"grpc://engine-{i}", load, load * 100) for i in range(size)])

    return build
