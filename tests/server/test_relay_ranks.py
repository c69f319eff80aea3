"""Data-parallel ranks of engines over HTTP: which rank a request names, in the words of each runtime, alone and in pairs."""

import json

import pytest

from smg.engine import ModelInfo
from tests.engine.http.upstream import answer
from tests.server.relaying import Relaying, config, over, relaying
from tests.server.test_relay import idle, run, saying
from tests.server.test_relay_pairs import HANDED

ROUND = config(routing={"policy": "round_robin"})
BODY = b'{ "model":"org/m", "prompt" : "Hi"}'


def ranks(url: str, runtime: str, *, role: str = "regular", first: int = 0) -> list[dict[str, object]]:
    """The records of an engine's two ranks."""
    known = {"base_url": url, "runtime": runtime, "model": "org/m", "role": role, "info": ModelInfo(served_name="org/m")}
    return [{**known, "url": f"{url}@{rank}", "rank": rank} for rank in (first, first + 1)]


async def ask(gateway: Relaying) -> None:
    headers = {"content-type": "application/json", "x-data-parallel-rank": "7"}
    reply = await gateway.http.post("/v1/completions", content=BODY, headers=headers)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("runtime", "added"),
    [("vllm", ["", ""]), ("sglang", [f',"data_parallel_rank":{rank},"routed_dp_rank":{rank}' for rank in (0, 1)])],
)
def test_an_engine_is_told_the_rank(runtime: str, added: list[str]) -> None:
    async def scene() -> None:
        async with relaying(saying(answer())) as engines:
            [server] = engines.servers
            async with over(*ranks(server.url, runtime), made=ROUND) as gateway:
                for _ in range(2):
                    await ask(gateway)
                await idle(gateway)
            told = sorted((asked.headers["x-data-parallel-rank"], asked.body) for asked in server.asked)
            assert told == [(str(rank), BODY[:-1] + added[rank].encode() + b"}") for rank in (0, 1)]
            assert server.connections == 1, "ranks share the connections of their engine"

    run(scene())


def test_an_engine_without_ranks_is_told_none() -> None:
    async def scene() -> None:
        async with relaying(saying(answer()), names=("org/m",)) as gateway:
            await ask(gateway)
            assert "x-data-parallel-rank" not in gateway.servers[0].asked[0].headers
            assert gateway.servers[0].asked[0].body == BODY

    run(scene())


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_each_part_of_a_pair_has_its_rank(runtime: str) -> None:
    async def scene() -> None:
        async with relaying(saying(answer(HANDED)), saying(answer())) as engines:
            prefill, decode = engines.servers
            server = {"role": "prefill"}
            records = [ranks(prefill.url, runtime, **server)[1], ranks(decode.url, runtime, role="decode", first=2)[1]]
            async with over(*records) as gateway:
                await ask(gateway)
                await idle(gateway)
            first, second = prefill.asked[0], decode.asked[0]
            assert [asked.headers["x-data-parallel-rank"] for asked in (first, second)] == ["1", "3"]
            names = ("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank")
            told = [[json.loads(asked.body).get(name) for name in names] for asked in (first, second)]
            assert told == ([[1, 1, None], [3, 3, 1]] if runtime == "sglang" else [[None] * 3] * 2)

    run(scene())
