"""What each driver writes into a GenerateRequest: neutral values where proto3's zero means something else, each field in its own place."""

import json
import re
from typing import Any

import pytest

from smg.engine import ENGINES, EngineRequest
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import choice_pattern, narrow_seed
from smg.types.job import Constraint
from tests.engine.drive import request

FULL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "max_tokens": 9,
    "ignore_eos": True,
}


def encoded(runtime: str, job: EngineRequest) -> Any:
    driver = ENGINES.get(runtime)("grpc://localhost:1")
    assert isinstance(driver, GrpcEngine)
    message = driver.encode(job)
    assert type(message).FromString(message.SerializeToString()) == message
    return message


def sampling(runtime: str, job: EngineRequest) -> Any:
    message = encoded(runtime, job)
    return message.sampling_config if runtime == "trtllm" else message.sampling_params


@pytest.mark.parametrize("runtime", ENGINES.names())
def test_neutral_values(runtime: str) -> None:
    params = sampling(runtime, request(max_tokens=None))
    assert (params.temperature, params.top_p, params.repetition_penalty) == (1.0, 1.0, 1.0)
    assert params.top_k == {"sglang": -1, "tokenspeed": -1}.get(runtime, 0)
    assert (params.min_p, params.frequency_penalty, params.presence_penalty) == (0, 0, 0)
    if runtime != "mlx":
        assert (params.num_return_sequences if runtime == "trtllm" else params.n) == 1
    if runtime in ("vllm", "mlx", "trtllm", "tokenspeed"):
        assert params.HasField("temperature")
    if runtime == "trtllm":
        assert encoded(runtime, request(max_tokens=None)).max_tokens == 2**31 - 1
    else:
        assert not params.HasField("max_new_tokens" if runtime in ("sglang", "tokenspeed") else "max_tokens")


@pytest.mark.parametrize("runtime", ENGINES.names())
def test_every_value_arrives(runtime: str) -> None:
    job = request(**FULL, stop_token_ids=(3, 4), seed=11, skip_special_tokens=False)
    message, params = encoded(runtime, job), sampling(runtime, job)
    for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"):
        assert getattr(params, name) == FULL[name], name
    home = message if runtime == "trtllm" else params
    limit = home.max_new_tokens if runtime in ("sglang", "tokenspeed") else home.max_tokens
    assert (limit, list(home.stop_token_ids), home.ignore_eos) == (9, [3, 4], True)
    assert message.request_id == "r-1"
    assert list(message.tokenized.input_token_ids if runtime == "trtllm" else message.tokenized.input_ids) == [5, 6, 7]
    assert (message.streaming if runtime == "trtllm" else message.stream) is True
    if runtime != "sglang":  # which has none
        assert (params.sampling_seed if runtime == "tokenspeed" else params.seed) == 11
    if runtime in ("vllm", "sglang", "tokenspeed"):
        assert params.skip_special_tokens is False


@pytest.mark.parametrize("runtime", ENGINES.names())
def test_zero_temperature_is_sent(runtime: str) -> None:
    params = sampling(runtime, request(temperature=0.0))
    assert params.temperature == 0
    if runtime != "sglang":
        assert params.HasField("temperature")


@pytest.mark.parametrize("runtime", ENGINES.names())
def test_stop_strings_only_where_they_are_taken(runtime: str) -> None:
    job = request(stop=("halt here",))
    message = encoded(runtime, job)
    found = {"vllm": lambda: message.sampling_params.stop, "trtllm": lambda: message.stop}.get(runtime)
    assert ENGINES.get(runtime).features.stop_strings is (found is not None)
    if found is not None:
        assert list(found()) == ["halt here"]
    else:
        assert b"halt here" not in message.SerializeToString()


@pytest.mark.parametrize(("runtime", "key"), [("vllm", 5), ("mlx", 5), ("sglang", "5"), ("tokenspeed", "5")])
def test_logit_bias_keys(runtime: str, key: int | str) -> None:
    assert dict(sampling(runtime, request(logit_bias={5: -1.5})).logit_bias) == {key: -1.5}


CONSTRAINTS = {
    "json_object": (
        "",
        {"vllm": ("json_object", True), "text": ("json_schema", '{"type": "object"}'), "trtllm": (1, '{"type": "object"}')},
    ),
    "json_schema": ("{}", {"vllm": ("json_schema", "{}"), "text": ("json_schema", "{}"), "trtllm": (2, "{}")}),
    "regex": ("a+", {"vllm": ("regex", "a+"), "text": ("regex", "a+"), "trtllm": (3, "a+")}),
    "grammar": ("g", {"vllm": ("grammar", "g"), "text": ("ebnf_grammar", "g"), "trtllm": (4, "g")}),
    "structural_tag": ("t", {"vllm": ("structural_tag", "t"), "text": ("structural_tag", "t"), "trtllm": (5, "t")}),
    "choice": ('["a", "b."]', {"text": ("regex", "(a|b\\.)"), "trtllm": (3, "(a|b\\.)")}),
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tokenspeed", "trtllm"])
def test_constraints(runtime: str, kind: Any) -> None:
    value, wanted = CONSTRAINTS[kind]
    message = encoded(runtime, request(constraint=Constraint(kind=kind, value=value)))
    if runtime == "trtllm":
        assert (message.guided_decoding.guide_type, message.guided_decoding.guide) == wanted["trtllm"]
        return
    params = message.sampling_params
    field = params.WhichOneof("constraint")
    if (runtime, kind) == ("vllm", "choice"):
        assert list(params.choice.choices) == ["a", "b."]
    else:
        assert (field, getattr(params, field)) == wanted["vllm" if runtime == "vllm" else "text"]


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tokenspeed", "trtllm"])
def test_no_constraint(runtime: str) -> None:
    message = encoded(runtime, request())
    if runtime == "trtllm":
        assert not message.HasField("guided_decoding")
    else:
        assert message.sampling_params.WhichOneof("constraint") is None


def test_sglang_scores_only_what_is_asked_for() -> None:
    plain = encoded("sglang", request())
    assert (plain.return_logprob, plain.logprob_start_len) == (False, -1)
    output = encoded("sglang", request(logprobs=2))
    assert (output.return_logprob, output.logprob_start_len, output.top_logprobs_num) == (True, -1, 2)
    prompt = encoded("sglang", request(logprobs=2, prompt_logprobs=5))
    assert (prompt.return_logprob, prompt.logprob_start_len, prompt.top_logprobs_num) == (True, 0, 5)


def test_sglang_constraint_waits_for_the_end_of_thinking() -> None:
    constraint = Constraint(kind="regex", value="a")
    assert encoded("sglang", request(constraint=constraint, reasoning_first=True)).require_reasoning
    assert not encoded("sglang", request(constraint=constraint)).require_reasoning
    assert not encoded("sglang", request(reasoning_first=True)).require_reasoning


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tokenspeed"])
def test_rank_zero_is_not_no_rank(runtime: str) -> None:
    assert encoded(runtime, request(data_parallel_rank=0)).HasField("data_parallel_rank")
    assert not encoded(runtime, request()).HasField("data_parallel_rank")


def test_vllm_greedy_choices() -> None:
    params = sampling("vllm", request(n=2, temperature=0.0, top_p=0.5, min_p=0.5))
    assert (params.n, params.temperature, params.top_k, params.top_p, params.min_p) == (2, 1.0, 1, 1.0, 0.0)


def test_mlx_needs_an_alternative_to_give_any_score() -> None:
    assert sampling("mlx", request(logprobs=0)).logprobs == 1
    assert not sampling("mlx", request()).HasField("logprobs")


def test_narrow_seed() -> None:
    assert [narrow_seed(seed, bits=31) for seed in (0, 7, 2**31 - 1)] == [0, 7, 2**31 - 1]
    wide = [narrow_seed(seed, bits=31) for seed in (2**31, 2**32, 2**63 - 1, -1, -(2**63), 2**64 - 2)]
    assert all(0 <= seed < 2**31 for seed in wide)
    assert len(set(wide[:2])) == 2
    assert narrow_seed(-1, bits=64) == 2**64 - 1
    assert narrow_seed(2**70 + 3, bits=64) == 3


def test_choice_pattern() -> None:
    texts = ["a.b", "(x)", "1+1", "", "line\nbreak", "Zażółć", "back\\slash", "[y]{2}^$|?*"]
    pattern = re.compile(choice_pattern(json.dumps(texts)))
    assert all(pattern.fullmatch(text) for text in texts)
    assert not any(pattern.fullmatch(text) for text in ("aXb", "x", "11", "linenbreak", "a.b "))
    for bad in ("", "{}", "[]", "[1]"):
        with pytest.raises(ValueError, match=r".*"):
            choice_pattern(bad)
