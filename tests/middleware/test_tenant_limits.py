"""What a tenant may use: estimates, settlements, rules for models; in this node's memory and in a real server that nodes share."""

import asyncio
import contextlib
import pathlib
import shutil
import socket
import subprocess

import pytest

from smg.config.classes import TenantLimits, read_tenant_limits
from smg.errors import LimitsUnavailable, TenantLimited
from smg.middleware import shared_limits
from smg.middleware.limits import LocalStore, TenantMeters
from smg.middleware.shared_limits import SharedStore
from smg.obs.buckets import Buckets
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.sim.processes import free_port
from smg.types.job import Sampling
from tests.server.serving import until
from tests.shm.memory import shared_memory

FILE = """
default_policy: {requests_per_minute: 2, tokens_per_minute: 1000}
tenants:
  - tenant_key: auth:a
    tokens_per_minute: 100000
    model_rules:
      - {rule_id: small, matcher: {type: exact, value: m-small}, requests_per_minute: 1}
      - {rule_id: all, matcher: {type: prefix, value: m-}, tokens_per_minute: 500}
  - {tenant_key: auth:busy, requests_per_minute: 1000000}
"""
SERVER = shutil.which("valkey-server") or shutil.which("redis-server")
needs_server = pytest.mark.skipif(
    SERVER is None, reason="neither redis-server nor valkey-server is installed: apt-get install redis-server"
)


@pytest.fixture
def limits(tmp_path) -> TenantLimits:
    file = tmp_path / "limits.yaml"
    file.write_text(FILE)
    return read_tenant_limits(str(file))


class Node:
    """One gateway's share: shared memory of its own, and the server if there is one."""

    def __init__(self, limits, *, url="", fail="open"):
        self.shm = Shm(shared_memory(rows=4))
        meter = Meter(self.shm, row=2)
        local = LocalStore(Buckets(self.shm))
        self.store = SharedStore(url, local=local if fail == "open" else None, meter=meter) if url else local
        self.meters = TenantMeters(limits, store=self.store, meter=meter)

    async def open(self, tenant, count=1):
        """True for each request that passes."""
        outcomes = []
        for _ in range(count):
            try:
                await self.meters.open(tenant)
                outcomes.append(True)
            except TenantLimited as error:
                outcomes.append(not 1 <= (error.retry_after_s or 0) <= 60)
        return outcomes

    async def charge(self, tenant, model, prompt, most):
        return await (await self.meters.open(tenant)).charge(model=model, prompt_tokens=prompt, sampling=Sampling(max_tokens=most))

    def failures(self):
        return next((values[0] for key, values in self.shm.totals() if b"server_failures" in key), 0)


def test_each_tenant_has_its_own_requests(limits):
    async def scenario():
        node = Node(limits)
        assert await node.open("ip:1", 3) == [True, True, False]
        assert await node.open("ip:2", 2) == [True, True]
        assert await node.open("auth:a", 20) == [True] * 20

    asyncio.run(scenario())


async def uses_tokens(node):
    """600 of the 1,000 that a minute has are charged, 10 were used; a job that nobody answered cost nothing."""
    charge = await node.charge("ip:1", "x", 100, 500)
    charge.settle(10)
    await settled(node)
    (await node.charge("ip:1", "x", 100, 850)).drop(answered=False)
    await settled(node)


async def settled(node):
    if isinstance(node.store, SharedStore):
        await until(lambda: not node.store._charges)


def test_what_was_not_used_comes_back(limits):
    async def scenario():
        node = Node(limits)
        await uses_tokens(node)
        account = await Node(limits).meters.open("ip:1")
        (await account.charge(model="x", prompt_tokens=100, sampling=Sampling(max_tokens=850))).drop(answered=True)
        with pytest.raises(TenantLimited):
            await account.charge(model="x", prompt_tokens=100, sampling=Sampling())

    asyncio.run(scenario())


def test_a_job_that_could_use_more_than_numbers_hold(limits):
    """It passes while the bucket is full; those after it wait for a day, or until it is settled."""

    async def scenario():
        node = Node(limits)
        account = await node.meters.open("ip:1")
        charge = await account.charge(model="x", prompt_tokens=1, sampling=Sampling(max_tokens=1 << 31, n=1 << 31))
        with pytest.raises(TenantLimited):
            await account.charge(model="x", prompt_tokens=1, sampling=Sampling(max_tokens=1))
        charge.settle(10)
        await account.charge(model="x", prompt_tokens=1, sampling=Sampling(max_tokens=900))

    asyncio.run(scenario())


def test_the_first_rule_that_fits_a_model(limits):
    async def scenario():
        node = Node(limits)
        await node.charge("auth:a", "m-small", 5000, 5000)
        with pytest.raises(TenantLimited):
            await node.charge("auth:a", "m-small", 1, 1)
        await node.charge("auth:a", "m-large", 400, 50)
        with pytest.raises(TenantLimited):
            await node.charge("auth:a", "m-large", 400, 50)
        await node.charge("auth:a", "other", 5000, 5000)
        account = await Node(limits).meters.open("auth:a")
        await account.charge(model="m-other", prompt_tokens=100, sampling=Sampling(max_tokens=10, n=20))
        with pytest.raises(TenantLimited):
            await account.charge(model="m-other", prompt_tokens=100, sampling=Sampling(max_tokens=10, n=20))

    asyncio.run(scenario())


def test_a_request_of_several_prompts_is_one_for_its_rule(limits):
    async def scenario():
        account = await Node(limits).meters.open("auth:a")
        for _ in range(3):
            await account.charge(model="m-small", prompt_tokens=1, sampling=Sampling(max_tokens=1))

    asyncio.run(scenario())


def test_a_refusal_takes_nothing(limits):
    """A job that one bucket refuses leaves the other as it was."""

    async def scenario():
        node = Node(limits)
        await node.charge("auth:a", "m-large", 400, 50)
        for _ in range(300):
            with pytest.raises(TenantLimited):
                await node.charge("auth:a", "m-large", 400, 50)
        await node.charge("auth:a", "other", 90_000, 5000)

    asyncio.run(scenario())


@contextlib.contextmanager
def server(folder: pathlib.Path):
    """A real server on a free port; `kill` ends it as a crash would."""
    port = free_port()
    process = start(folder, port)
    try:
        yield f"redis://127.0.0.1:{port}/0", port, process
    finally:
        process.kill()
        process.wait()


def start(folder, port):
    flags = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
    return subprocess.Popen([SERVER, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def listening(port):
    def there():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await until(there)


@needs_server
def test_nodes_share_what_a_server_keeps(limits, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_limits, "CALL_S", 5.0)  # a busy machine is no dead server

    async def scenario(url, port):
        await listening(port)
        one, other = Node(limits, url=url), Node(limits, url=url)
        assert await one.open("ip:1") + await other.open("ip:1", 2) == [True, True, False]
        await one.charge("auth:a", "m-small", 10, 10)
        with pytest.raises(TenantLimited):
            await other.charge("auth:a", "m-small", 10, 10)
        charge = await one.charge("auth:a", "m-large", 400, 50)
        with pytest.raises(TenantLimited):
            await other.charge("auth:a", "m-large", 400, 50)
        charge.settle(20)
        await settled(one)
        await other.charge("auth:a", "m-large", 400, 50)
        assert (one.failures(), other.failures()) == (0, 0)
        for node in (one, other):
            await node.store.close()

    with server(tmp_path) as (url, port, _):
        asyncio.run(scenario(url, port))


@needs_server
def test_many_at_once_get_exactly_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_limits, "CALL_S", 20.0)
    (tmp_path / "l.yaml").write_text("default_policy: {requests_per_minute: 50}")
    many = read_tenant_limits(str(tmp_path / "l.yaml"))

    async def scenario(url, port):
        await listening(port)
        nodes = [Node(many, url=url) for _ in range(3)]
        began = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*(node.open("t", 40) for node in nodes))
        took_s = asyncio.get_running_loop().time() - began
        assert 50 <= sum(map(sum, outcomes)) <= 51 + took_s / 1.2, "one is refilled in 1.2 s"
        for node in nodes:
            await node.store.close()

    with server(tmp_path) as (url, port, _):
        asyncio.run(scenario(url, port))


@needs_server
@pytest.mark.parametrize("fail", ["open", "closed"])
def test_a_server_that_is_gone_in_the_midst(limits, tmp_path, monkeypatch, fail):
    monkeypatch.setattr(shared_limits, "REST_S", 0.05)
    monkeypatch.setattr(shared_limits, "CALL_S", 5.0)

    async def scenario(url, port, process):
        await listening(port)
        node = Node(limits, url=url, fail=fail)
        await until_passes(node, "auth:busy")
        process.kill()
        process.wait()
        if fail == "open":
            assert await node.open("ip:9", 3) == [True, True, False], "this node limits by itself"
        else:
            with pytest.raises(LimitsUnavailable) as told:
                await node.meters.open("ip:9")
            assert (told.value.status, told.value.retry_after_s) == (503, 1)
        assert node.failures() >= 1
        again = start(tmp_path, port)
        try:
            await listening(port)
            await until_answers(node)
        finally:
            again.kill()
            again.wait()
        await node.store.close()

    with server(tmp_path) as (url, port, process):
        asyncio.run(scenario(url, port, process))


async def until_answers(node):
    """The server is asked again after the rest, and answers."""
    end = asyncio.get_running_loop().time() + 30
    failed = -1
    while failed != node.failures():
        assert asyncio.get_running_loop().time() < end
        await until(lambda: shared_limits.time.monotonic() > node.store._rests_until_s)
        failed = node.failures()
        await until_passes(node, "auth:busy")


async def until_passes(node, tenant):
    end = asyncio.get_running_loop().time() + 30
    while True:
        try:
            await node.meters.open(tenant)
            return
        except LimitsUnavailable:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)


def test_a_server_that_hangs_costs_one_request_its_time(limits):
    """It is asked once; those after it, within the rest, are not held up."""

    async def scenario():
        asked = 0

        async def silent(reader, writer):
            nonlocal asked
            asked += 1
            await reader.read()
            writer.close()

        hung = await asyncio.start_server(silent, "127.0.0.1", 0)
        node = Node(limits, url=f"redis://127.0.0.1:{hung.sockets[0].getsockname()[1]}/0")
        assert await node.open("auth:busy", 200) == [True] * 200
        assert 1 <= node.failures() <= 10
        assert asked <= 20
        await node.store.close()
        hung.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        *(b":abc\r\n", b"$-1\r\n", b"_\r\n", b"+OK\r\n", b"*1\r\n:1\r\n", b"$2\r\n\xff\xfe\r\n", b":-5\r\n", b":99999999999999999999\r\n"),
        *(b"-READONLY no\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b":1", b"*1\r\n" * 5000),
    ],
)
@pytest.mark.parametrize("fail", ["open", "closed"])
def test_a_server_that_says_something_else(limits, fail, said):
    """Another program at the port, or one that is out of its mind, is as one that does not answer."""

    async def scenario():
        async def answers(reader, writer):
            while data := await reader.read(65536):
                setup = data.count(b"CLIENT") + data.count(b"SELECT") + data.count(b"HELLO")
                writer.write(b"+OK\r\n" * setup if b"EVALSHA" not in data else said)
            writer.close()

        odd = await asyncio.start_server(answers, "127.0.0.1", 0)
        node = Node(limits, url=f"redis://127.0.0.1:{odd.sockets[0].getsockname()[1]}/0", fail=fail)
        if fail == "open":
            assert await node.open("ip:9", 3) == [True, True, False]
        else:
            with pytest.raises(LimitsUnavailable):
                await node.meters.open("ip:9")
        assert node.failures() >= 1
        await node.store.close()
        odd.close()

    asyncio.run(scenario())


def test_what_was_not_used_comes_back_where_a_dead_server_was_not_charged(limits):
    async def scenario():
        node = Node(limits, url="redis://127.0.0.1:1/0")
        await uses_tokens(node)
        await node.store.close()

    asyncio.run(scenario())


def test_a_late_answer_is_not_that_of_the_next_question(limits, monkeypatch):
    monkeypatch.setattr(shared_limits, "REST_S", 0.0)

    async def scenario():
        late = asyncio.Event()
        asked = 0

        async def answers(reader, writer):
            nonlocal asked
            while data := await reader.read(65536):
                if b"EVALSHA" not in data:
                    writer.write(b"+OK\r\n" * (data.count(b"CLIENT") + data.count(b"SELECT") + data.count(b"HELLO")))
                    continue
                asked += 1
                if asked == 1:
                    await late.wait()
                    writer.write(b":60000000\r\n")
                else:
                    writer.write(b":0\r\n")
            writer.close()

        slow = await asyncio.start_server(answers, "127.0.0.1", 0)
        node = Node(limits, url=f"redis://127.0.0.1:{slow.sockets[0].getsockname()[1]}/0", fail="closed")
        with pytest.raises(LimitsUnavailable):
            await node.meters.open("ip:9")
        late.set()
        await node.meters.open("ip:9")
        await node.store.close()
        slow.close()

    asyncio.run(scenario())


def test_charges_that_nobody_takes_do_not_pile_up(limits, monkeypatch):
    monkeypatch.setattr(shared_limits, "MOST_CHARGES", 5)

    async def scenario():
        node = Node(limits, url="redis://127.0.0.1:1/0")
        charges = [await node.charge("auth:a", "other", 1, 1) for _ in range(20)]
        for charge in charges:
            charge.settle(1000)
        assert len(node.store._charges) <= 5
        await node.store.close()
        assert not node.store._charges

    asyncio.run(scenario())
