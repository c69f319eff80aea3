"""The contract of `Engine`, over every registered driver, against the simulator of its protocol: answers, facts and refusals."""

import hashlib
import io
import zipfile
from contextlib import aclosing
from typing import Any

import pytest

from smg.engine import Engine, EngineDelta, detect
from smg.errors import EngineRejected, UnsupportedParameter
from smg.sim.server import Sim
from smg.types.job import Constraint
from tests.engine.drive import TEXT, collect, ids_of, play, request

pytestmark = pytest.mark.usefixtures("data_plane")

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])


def expected(sim: Sim, choice: int = 0) -> list[int]:
    model = sim.engine.model
    return model.encode(TEXT if choice == 0 else f"({choice}) {TEXT}")


def closing(deltas: list[EngineDelta], choice: int = 0) -> EngineDelta:
    """The last delta of a choice, which alone has a finish."""
    mine = [delta for delta in deltas if delta.choice == choice]
    assert [delta.finish is not None for delta in mine] == [False] * (len(mine) - 1) + [True]
    return mine[-1]


@STREAMED
def test_each_id_once_with_counts(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(stream=stream, max_tokens=None))
        wanted = [*expected(sim), sim.engine.model.eos_ids[0]]
        assert ids_of(deltas) == wanted
        last = closing(deltas)
        assert last.finish == "stop"
        assert last.completion_tokens == len(wanted)
        assert last.prompt_tokens == 3
        counts = [delta.completion_tokens for delta in deltas]
        assert counts == sorted(counts)
        if stream:
            assert len(deltas) > 5

    play(runtime, scene)


def test_messages_of_several_tokens(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(ignore_eos=False))
        assert ids_of(deltas) == [*expected(sim), sim.engine.model.eos_ids[0]]

    play(runtime, scene, stream_interval=4)


@STREAMED
def test_repeated_ids_are_not_lost(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(stream=stream, ignore_eos=True, max_tokens=7))
        assert ids_of(deltas) == sim.engine.model.encode("a") * 7

    play(runtime, scene, text="a")


@STREAMED
@pytest.mark.parametrize("count", [1, 5])
def test_finish_length(runtime: str, stream: bool, count: int) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(stream=stream, max_tokens=count))
        assert ids_of(deltas) == expected(sim)[:count]
        assert closing(deltas).finish == "length"
        assert closing(deltas).matched is None

    play(runtime, scene)


@STREAMED
def test_stop_token_is_named_and_kept(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        stop = expected(sim)[3]
        assert stop not in expected(sim)[:3]
        deltas = await collect(engine, request(stream=stream, stop_token_ids=(stop,)))
        assert ids_of(deltas) == expected(sim)[:4]
        assert (closing(deltas).finish, closing(deltas).matched) == ("stop", stop)

    play(runtime, scene)


def test_stop_strings(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(stop=("lazy",)))
        text = sim.engine.model.decode(ids_of(deltas))
        if engine.features.stop_strings:
            assert "lazy" in text
            assert "dog" not in text
            assert closing(deltas).matched == "lazy"
        else:
            assert text == TEXT  # not sent: the pipeline matches

    play(runtime, scene)


@STREAMED
def test_several_choices(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        job = request(stream=stream, n=3)
        if not engine.features.n:
            with pytest.raises(UnsupportedParameter):
                engine.check(job)
            return
        deltas = await collect(engine, job)
        found = [ids_of(deltas, choice)[:-1] for choice in range(3)]
        wanted = [expected(sim, choice) for choice in range(3)]
        assert (found == wanted) if stream else (sorted(found) == sorted(wanted))
        assert [closing(deltas, choice).finish for choice in range(3)] == ["stop"] * 3

    play(runtime, scene)


def test_several_greedy_choices(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        if engine.features.n:
            deltas = await collect(engine, request(n=2, temperature=0.0))
            assert {delta.choice for delta in deltas} == {0, 1}

    play(runtime, scene)


@STREAMED
@pytest.mark.parametrize("top", [0, 3])
def test_logprobs(runtime: str, stream: bool, top: int) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = await collect(engine, request(stream=stream, logprobs=top))
        scores = [delta.logprobs for delta in deltas if delta.logprobs is not None]
        assert [token_id for part in scores for token_id in part.ids] == ids_of(deltas)
        values = [value for part in scores for value in part.values]
        assert len(values) == len(ids_of(deltas))
        assert all(value is not None and value < 0 for value in values)
        tops = [entry for part in scores for entry in part.top]
        assert [len(ids) for ids, _ in tops] == ([3] * len(values) if top else [])
        assert all(list(scores) == sorted(scores, reverse=True) for _, scores in tops)

    play(runtime, scene)


def test_no_logprobs_unless_asked(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        assert all(delta.logprobs is None and delta.prompt_logprobs is None for delta in await collect(engine, request()))

    play(runtime, scene)


@STREAMED
def test_prompt_logprobs_come_once(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        job = request(stream=stream, prompt_logprobs=2)
        if not engine.features.prompt_logprobs:
            with pytest.raises(UnsupportedParameter, match=f"the {runtime} engine does not support prompt_logprobs"):
                engine.check(job)
            return
        scores = [delta.prompt_logprobs for delta in await collect(engine, job) if delta.prompt_logprobs is not None]
        assert [part.ids for part in scores] == [[5, 6, 7]]
        assert all(value is not None for value in scores[0].values[1:])
        if runtime != "trtllm":  # its values are not optional
            assert scores[0].values[0] is None
        assert [len(ids) for ids, _ in scores[0].top[1:]] == [2, 2]

    play(runtime, scene)


def test_cached_tokens(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        for _ in range(2):
            last = closing(await collect(engine, request(prompt_ids=list(range(5, 105)))))
        assert last.prompt_tokens == 100
        assert last.cached_tokens == (0 if runtime == "mlx" else 96)

    play(runtime, scene)


def test_facts(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        model, info = sim.engine.model, await engine.model_info()
        assert info.vocab_size == model.vocab_size
        assert info.context_length == model.context_length
        assert info.model_path
        assert info.is_generation
        if runtime != "trtllm":  # which tells neither
            assert info.eos_token_ids == model.eos_ids
            assert info.served_name
            assert info.architectures == model.architectures
        server = await engine.server_info()
        assert server.data_parallel_size == 1
        assert server.active_requests == 0

    play(runtime, scene)


def test_loads(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        async with aclosing(engine.generate(request(max_tokens=2000, ignore_eos=True), timeout_s=30)) as deltas:  # type: ignore[type-var]
            await anext(deltas)
            loads = await engine.loads()
        if engine.features.loads:
            assert [(load.rank, load.running, load.waiting) for load in loads] == [(0, 1, 0)]
        else:
            assert loads == []

    play(runtime, scene, itl_ms=20)


@pytest.mark.parametrize(("health", "answer"), [("ok", True), ("down", False)])
def test_health(runtime: str, health: str, answer: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        assert await engine.health() is answer

    play(runtime, scene, health=health)


def test_tokenizer_archive(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        data = await engine.tokenizer_archive()
        assert hashlib.sha256(data).hexdigest() == sim.engine.model.archive()[1]
        assert "tokenizer.json" in zipfile.ZipFile(io.BytesIO(data)).namelist()

    play(runtime, scene)


def test_detect(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        assert await detect(sim.url) == runtime

    play(runtime, scene)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_object", ""),
        ("json_schema", '{"type": "object"}'),
        ("regex", "a+"),
        ("grammar", 'root ::= "a"'),
        ("structural_tag", "{}"),
        ("choice", '["a", "b"]'),
    ],
)
def test_constraints_are_carried_or_refused(runtime: str, kind: Any, value: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        job = request(constraint=Constraint(kind=kind, value=value))
        if kind in engine.features.constraints:
            engine.check(job)
            await collect(engine, job)
            return
        with pytest.raises(UnsupportedParameter, match=f"the {runtime} engine does not support ") as caught:
            engine.check(job)
        assert caught.value.param in ("response_format", "regex", "ebnf", "guided_choice")
        assert caught.value.status == 400

    play(runtime, scene)


@pytest.mark.parametrize(
    ("feature", "changes"),
    [
        ("n", {"n": 2}),
        ("logit_bias", {"logit_bias": {5: 1.0}}),
        ("min_tokens", {"min_tokens": 3}),
        ("min_p", {"min_p": 0.1}),
        ("logprobs", {"logprobs": 1}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("data_parallel_rank", {"data_parallel_rank": 0}),
    ],
)
def test_parameters_are_carried_or_refused(runtime: str, feature: str, changes: dict[str, Any]) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        job = request(**changes)
        if getattr(engine.features, feature):
            engine.check(job)
            assert closing(await collect(engine, job)).finish is not None
            return
        with pytest.raises(UnsupportedParameter) as caught:
            engine.check(job)
        assert caught.value.message == f"the {runtime} engine does not support {feature}"
        assert caught.value.param == feature

    play(runtime, scene)


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**63 - 1, -1])
def test_seeds_of_any_width(runtime: str, seed: int) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        assert ids_of(await collect(engine, request(seed=seed)))

    play(runtime, scene)


def test_value_that_does_not_fit(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        with pytest.raises(EngineRejected):
            await collect(engine, request(prompt_ids=[-1]))
        with pytest.raises(EngineRejected):
            await collect(engine, request(max_tokens=2**40))
        assert sim.counters.started == 0

    play(runtime, scene)
