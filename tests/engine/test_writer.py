"""Requests as the native plane writes them against the driver's `encode`: what is parsed from both must be the same."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import RequestLayout, packed_ids
from smg.engine import ENGINES, EngineRequest, ResolvedSampling, writer
from smg.engine.fields import request_numbers
from smg.engine.grpc import GrpcEngine
from smg.engine.writer import RequestWriter
from smg.pb import mlx_engine_pb2, sglang_scheduler_pb2, vllm_engine_pb2
from smg.types.job import Constraint
from tests.engine.drive import request

numbers = st.floats(-100, 100, width=32).map(lambda value: value + 0.0)  # what is kept does not tell -0.0 from 0.0
counts = st.integers(0, 2**20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**31, 2**32 - 1]))
constraints = st.one_of(
    st.none(),
    st.builds(Constraint, kind=st.sampled_from(["json_schema", "regex", "grammar", "structural_tag"]), value=texts),
    st.just(Constraint(kind="json_object", value="")),
)
samplings = st.builds(
    ResolvedSampling,
    temperature=numbers,
    top_p=numbers,
    top_k=st.integers(-1, 100),
    min_p=numbers,
    frequency_penalty=numbers,
    presence_penalty=numbers,
    repetition_penalty=numbers,
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    logit_bias=st.dictionaries(st.integers(0, 2**20), numbers, max_size=3),
    max_tokens=st.none() | counts,
    min_tokens=counts,
    ignore_eos=st.booleans(),
    n=st.integers(1, 4),
)
requests = st.builds(
    EngineRequest,
    request_id=texts,
    prompt_ids=st.lists(ids, max_size=12),
    prompt_text=texts,
    sampling=samplings,
    stop=st.lists(texts, max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**20), max_size=3).map(tuple),
    include_stop_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    constraint=constraints,
    reasoning_first=st.booleans(),
    stream=st.booleans(),
    data_parallel_rank=st.none() | st.integers(0, 7),
    priority=st.integers(-5, 5),
)


def opened(runtime: str) -> GrpcEngine:
    engine = ENGINES.get(runtime)("grpc://localhost:1")
    assert isinstance(engine, GrpcEngine)
    return engine


def make(engine: GrpcEngine) -> RequestWriter:
    return RequestWriter(engine.service.methods_by_name["Generate"].input_type, engine.encode)


@pytest.mark.parametrize("name", ENGINES.names())
@settings(max_examples=40, deadline=None)
@given(jobs=st.lists(requests, min_size=1, max_size=2))
def test_written_is_encoded(name: str, jobs: list[EngineRequest]) -> None:
    engine = opened(name)
    write = make(engine).write
    for job in [*jobs, *jobs]:  # the second time from what is kept
        expected = engine.encode(job)
        assert type(expected).FromString(write(job)) == expected


@settings(max_examples=40, deadline=None)
@given(first=requests, second=requests)
def test_what_is_kept_is_told_apart_by_every_field(first: EngineRequest, second: EngineRequest) -> None:
    engine = opened("vllm")
    write = make(engine).write
    write(first)
    expected = engine.encode(second)
    assert type(expected).FromString(write(second)) == expected


def test_one_field_apart(runtime: str) -> None:
    engine = opened(runtime)
    write = make(engine).write
    for changes in ({}, {"temperature": 0.5}, {"seed": 3}, {"stop_token_ids": (9,)}, {"logprobs": 0}, {"logprobs": 1}, {"stream": False}):
        job = request(**changes)
        assert type(engine.encode(job)).FromString(write(job)) == engine.encode(job)


def test_a_long_prompt(runtime: str) -> None:
    engine = opened(runtime)
    job = request(prompt_ids=[7 * i for i in range(100_000)], prompt_text="long é " * 100_000)
    assert type(engine.encode(job)).FromString(make(engine).write(job)) == engine.encode(job)


def test_ids_of_an_array_are_packed_as_those_of_a_list(runtime: str) -> None:
    edges = [edge + step for edge in (1 << 7, 1 << 14, 1 << 21, 1 << 28) for step in (-1, 0, 1)]
    engine = opened(runtime)
    for ids in ([], [0], edges, [0, *edges, 2**32 - 1] * 200, list(range(40_000))):
        assert packed_ids(array("I", ids)) == packed_ids(ids)
        job = request(prompt_ids=array("I", ids))
        assert type(engine.encode(job)).FromString(make(engine).write(job)) == engine.encode(request(prompt_ids=ids))


@pytest.mark.parametrize("ids", [(1, 2), array("i", [1]), array("Q", [1]), b"1234", memoryview(bytes(8)).cast("I", (2, 1)), 7])
def test_what_is_no_array_of_ids_is_refused(ids: object) -> None:
    with pytest.raises(TypeError):
        packed_ids(ids)  # type: ignore[arg-type]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "KEPT_REQUESTS", 3)
    made = make(opened("vllm"))
    made._kept.clear()  # it is shared with the other tests' engines
    for seed in range(10):
        made.write(request(seed=seed))
    assert len(made._kept) == 3
    made.write(request(stop=("x" * writer.KEPT_BYTES,)))
    made.write(request(logit_bias={1: 1.0}))
    assert len(made._kept) == 3
    assert all(len(fixed) <= writer.KEPT_BYTES for fixed in made._kept.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_ids": [-1]},
        {"prompt_ids": [2**32]},
        {"prompt_ids": [1] * 2000 + [2**70]},
        {"prompt_ids": ["1"]},
        {"prompt_ids": [None]},
        {"prompt_ids": [1.0]},
        {"prompt_text": "\ud800"},
        {"request_id": "\ud800"},
        {"max_tokens": 2**40},
    ],
)
def test_values_that_do_not_fit(runtime: str, changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        make(opened(runtime)).write(request(**changes))


def test_messages_without_the_parts() -> None:
    for message in (vllm_engine_pb2.AbortRequest, mlx_engine_pb2.GenerateResponse, sglang_scheduler_pb2.GenerateStreamChunk):
        with pytest.raises(ValueError, match="has no field"):
            request_numbers(message.DESCRIPTOR)


def test_layouts_are_checked() -> None:
    good = {"request_id": 1, "prompt": 2**29 - 1, "text": 15, "ids": 16}
    written = RequestLayout(**good).write(b"\x50\x01", request_id="r", text="t", packed=packed_ids([1, 128]))
    prompt = b"\x7a\x01t" + b"\x82\x01\x03\x01\x80\x01"
    assert written == b"\x50\x01" + b"\x0a\x01r" + b"\xfa\xff\xff\xff\x0f" + bytes([len(prompt)]) + prompt
    assert RequestLayout(**good).write(b"", request_id="", text="", packed=b"") == b""
    for name, number in (("request_id", 0), ("prompt", 2**29), ("text", -1)):
        with pytest.raises((ValueError, OverflowError)):
            RequestLayout(**{**good, name: number})
