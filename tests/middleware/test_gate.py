"""The gate as a data worker has it: none where nothing is limited; real bells between processes; a server of limits that is gone."""

import asyncio

import pytest

from smg.config import Config
from smg.config.tree import Admission, PriorityScheduler, Tenants
from smg.errors import LimitsUnavailable, Preempted, TenantLimited
from smg.middleware import Gate, admission
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.types.account import ACCOUNT
from tests.api.fake import request
from tests.server.serving import until
from tests.shm.memory import shared_memory


class Holder:
    def __init__(self):
        self.ended = None

    def answered(self):
        return False

    def give_way(self):
        self.ended = Preempted("")


@pytest.fixture
def shm():
    return Shm(shared_memory(rows=8))


def make(config, shm, folder, row=2):
    return Gate.make(config, shm=shm, row=row, folder=folder, meter=Meter(shm, row=row), engines=lambda: 1)


def admit(gate, holder=None, **headers):
    return gate.admit(request({}, headers=headers), authorized="", holder=holder or Holder())


def test_nothing_where_nothing_is_limited(shm, tmp_path):
    assert make(Config(), shm, tmp_path) is None
    assert make(Config(admission=Admission(max_concurrent_requests=0)), shm, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_what_counts():
    def counts(path):
        made = request({})
        made.path = path
        return Gate.counts(made)

    assert all(map(counts, ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings", "/generate")))
    assert not any(map(counts, ("/v1/models", "/health", "/v1/tokenize", "/parse/reasoning", "/workers", "/metrics")))


def test_the_next_is_rung_in_its_own_process(shm, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "LOOK_S", 3600.0)
    config = Config(admission=Admission(max_concurrent_requests=1))

    async def scenario():
        (tmp_path / "bell-3").touch()  # a process that had this row before left it
        one, other = make(config, shm, tmp_path), make(config, shm, tmp_path, row=3)
        permit = await admit(one)
        waiting = asyncio.create_task(admit(other))
        await asyncio.sleep(0)
        assert not waiting.done()
        permit.close()
        (await asyncio.wait_for(waiting, 10)).close()
        await one.close()
        permit = await admit(other)
        await other.close()
        permit.close()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_a_seat_is_asked_for_in_its_own_process(shm, tmp_path):
    config = Config(
        admission=Admission(max_concurrent_requests=1), priority_scheduler=PriorityScheduler(enabled=True, default_max_class="system")
    )

    async def scenario():
        one, other = make(config, shm, tmp_path), make(config, shm, tmp_path, row=3)
        holder = Holder()
        permit = await admit(one, holder, **{"x-smg-priority": "bulk"})
        waiting = asyncio.create_task(admit(other, **{"x-smg-priority": "system"}))
        await until(lambda: holder.ended)
        permit.close()
        (await waiting).close()
        for gate in (one, other):
            await gate.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("fail", ["open", "closed"])
def test_a_server_of_limits_that_is_not_there(shm, tmp_path, fail):
    file = tmp_path / "limits.yaml"
    file.write_text("default_policy: {requests_per_minute: 1}")
    tenants = Tenants(rate_limit_enabled=True, rate_limit_config=str(file), rate_limit_url="redis://127.0.0.1:1/0", rate_limit_fail=fail)

    async def scenario():
        gate = make(Config(tenants=tenants), shm, tmp_path)
        assert ACCOUNT.get() is None
        if fail == "open":
            assert await admit(gate) is None
            assert ACCOUNT.get() is not None
            with pytest.raises(TenantLimited):
                await admit(gate)
        else:
            with pytest.raises(LimitsUnavailable):
                await admit(gate)
        await gate.close()

    asyncio.run(scenario())
