"""What engines answer, read by the names of fields: values of each protocol, and neutral ones where it says nothing."""

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from smg.engine import ENGINES, EngineDelta, Load, ModelInfo, ServerInfo, TokenScores
from smg.engine.grpc import GrpcEngine
from smg.engine.replies import delta_of, load_of, model_info_of, server_info_of
from smg.errors import EngineError
from smg.pb import mlx_engine_pb2, sglang_scheduler_pb2, tokenspeed_scheduler_pb2, trtllm_service_pb2, vllm_engine_pb2
from smg.worker.watch import load_fields

PARALLEL: dict[str, Any] = {"token_logprobs": [-0.5], "token_ids": [5], "top_logprobs": [{"values": [-0.5, -2], "token_ids": [5, 6]}]}
SCORES = TokenScores(ids=[5], values=[-0.5], top=[([5, 6], [-0.5, -2])])


def answer(runtime: str, method: str) -> Any:
    driver = ENGINES.get(runtime)
    assert issubclass(driver, GrpcEngine)
    return GetMessageClass(driver.service.methods_by_name[method].output_type)


def generated(runtime: str, which: str, **fields: Any) -> EngineDelta:
    return delta_of(answer(runtime, "Generate")(**{which: fields}))


@pytest.mark.parametrize("which", ["chunk", "complete"])
def test_counts_and_ids(runtime: str, which: str) -> None:
    own = runtime == "trtllm"
    ids = "token_ids" if which == "chunk" else ("output_token_ids" if own else "output_ids")
    index = "sequence_index" if own else "index"
    counts = {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 3} | ({"reasoning_tokens": 1} if runtime == "sglang" else {})
    told = generated(runtime, which, **{ids: [4, 4], index: 1}, **counts)
    assert told == EngineDelta(choice=1, token_ids=[4, 4], **counts, finish="stop" if which == "complete" else None)


def test_an_empty_message_is_an_empty_chunk(runtime: str) -> None:
    assert delta_of(answer(runtime, "Generate")()) == EngineDelta()


@pytest.mark.parametrize(("reason", "finish"), [("length", "length"), ("eos", "stop"), ("aborted", "abort")])
def test_finish(runtime: str, reason: str, finish: str) -> None:
    assert generated(runtime, "complete", finish_reason=reason).finish == finish
    with pytest.raises(EngineError):
        generated(runtime, "complete", finish_reason="error")


def test_matched(runtime: str) -> None:
    name = "matched_stop_token_id" if runtime == "mlx" else "matched_token_id"
    assert generated(runtime, "complete", **{name: 0}).matched == 0  # zero is an id, not nothing
    assert generated(runtime, "complete").matched is None
    if runtime != "mlx":
        assert generated(runtime, "complete", matched_stop_str="halt").matched == "halt"


@pytest.mark.parametrize("which", ["chunk", "complete"])
def test_scores(runtime: str, which: str) -> None:
    if runtime == "trtllm":
        row = {"token_id": 5, "logprob": -0.5, "top_logprobs": [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -2}]}
        assert generated(runtime, which, logprobs=[row]).logprobs == SCORES
        if which == "complete":
            assert generated(runtime, which, prompt_logprobs=[row]).prompt_logprobs == SCORES
        return
    assert generated(runtime, which, output_logprobs=PARALLEL).logprobs == SCORES
    assert generated(runtime, which, output_logprobs={}).logprobs == TokenScores(ids=[], values=[])
    if runtime in ("vllm", "sglang"):
        told = generated(runtime, which, input_logprobs={**PARALLEL, "token_logprobs": [{}]})
        assert told.prompt_logprobs == TokenScores(ids=[5], values=[None], top=SCORES.top)
        assert told.logprobs is None


@pytest.mark.parametrize(
    ("reply", "info"),
    [
        (vllm_engine_pb2.GetModelInfoResponse(), ModelInfo(is_generation=False)),
        (
            vllm_engine_pb2.GetModelInfoResponse(
                model_path="/m", served_model_name="m", tokenizer_path="/t", max_context_length=9, vocab_size=8, eos_token_ids=[2, 3],
                bos_token_id=1, architectures=["A"], model_type="a", is_generation=True, supports_vision=True,
                default_sampling_params_json="{}",
            ),
            ModelInfo(
                model_path="/m", served_name="m", tokenizer_path="/t", context_length=9, vocab_size=8, eos_token_ids=(2, 3),
                bos_token_id=1, architectures=("A",), model_type="a", is_generation=True, supports_vision=True, default_sampling_json="{}",
            ),
        ),
        (
            sglang_scheduler_pb2.GetModelInfoResponse(
                is_generation=True, max_context_length=-1, vocab_size=-5, preferred_sampling_params='{"top_k": 2}'
            ),
            ModelInfo(default_sampling_json='{"top_k": 2}'),
        ),
        (
            sglang_scheduler_pb2.GetModelInfoResponse(
                is_generation=True, preferred_sampling_params="old", default_sampling_params_json="new"
            ),
            ModelInfo(default_sampling_json="new"),
        ),
        (
            tokenspeed_scheduler_pb2.GetModelInfoResponse(max_context_length=7, served_model_name="s"),
            ModelInfo(context_length=7, served_name="s"),
        ),
        (mlx_engine_pb2.GetModelInfoResponse(is_generation=True, max_context_length=5), ModelInfo(context_length=5)),
        (
            trtllm_service_pb2.GetModelInfoResponse(model_id="x", max_input_len=3, vocab_size=4),
            ModelInfo(model_path="x", served_name="x", context_length=3, vocab_size=4),
        ),
        (trtllm_service_pb2.GetModelInfoResponse(max_input_len=3, max_seq_len=6), ModelInfo(context_length=6)),
        (trtllm_service_pb2.GetModelInfoResponse(max_input_len=-3), ModelInfo()),
    ],
)  # fmt: skip
def test_model_info(reply: Any, info: ModelInfo) -> None:
    assert model_info_of(reply) == info


def sglang_server(**arguments: int) -> Any:
    reply = sglang_scheduler_pb2.GetServerInfoResponse(sglang_version="0.5", active_requests=4)
    reply.server_args.update(arguments)
    return reply


@pytest.mark.parametrize(
    ("reply", "info"),
    [
        (sglang_server(dp_size=2), ServerInfo(version="0.5", active_requests=4, data_parallel_size=2)),
        (sglang_server(), ServerInfo(version="0.5", active_requests=4)),
        (sglang_server(disaggregation_bootstrap_port=9), ServerInfo(version="0.5", active_requests=4, bootstrap_port=9)),
        (sglang_server(disaggregation_bootstrap_port=65536), ServerInfo(version="0.5", active_requests=4)),
        (sglang_server(disaggregation_bootstrap_port=float("nan")), ServerInfo(version="0.5", active_requests=4)),
        (sglang_server(dp_size=-1), ServerInfo(version="0.5", active_requests=4)),
        (sglang_server(dp_size=float("nan")), ServerInfo(version="0.5", active_requests=4)),
        (sglang_server(dp_size=float("inf")), ServerInfo(version="0.5", active_requests=4)),
        (tokenspeed_scheduler_pb2.GetServerInfoResponse(tokenspeed_version="1"), ServerInfo(version="1")),
        (
            vllm_engine_pb2.GetServerInfoResponse(data_parallel_size=4, kv_connector="c", kv_engine_id="e", active_requests=1),
            ServerInfo(data_parallel_size=4, kv_connector="c", kv_engine_id="e", active_requests=1),
        ),
        (vllm_engine_pb2.GetServerInfoResponse(), ServerInfo()),
        (trtllm_service_pb2.GetServerInfoResponse(version="1.0"), ServerInfo(version="1.0")),
        (mlx_engine_pb2.GetServerInfoResponse(active_requests=2), ServerInfo(active_requests=2)),
    ],
)
def test_server_info(reply: Any, info: ServerInfo) -> None:
    assert server_info_of(reply) == info


@pytest.mark.parametrize("module", [vllm_engine_pb2, sglang_scheduler_pb2, tokenspeed_scheduler_pb2])
def test_load(module: Any) -> None:
    reply = module.SchedulerLoad(dp_rank=1, num_running_reqs=2, num_waiting_reqs=3, num_used_tokens=4, max_total_num_tokens=5)
    reply.num_waiting_uncached_tokens = 6
    reply.gen_throughput = 7.5
    assert load_of(reply) == Load(rank=1, running=2, waiting=3, used_tokens=4, max_tokens=5, waiting_uncached_tokens=6, generated_per_s=7.5)


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_speed_that_is_none(speed: float) -> None:
    """An engine that divides by no time. What was made of it ended the control process."""
    load = load_of(sglang_scheduler_pb2.SchedulerLoad(num_running_reqs=2, gen_throughput=speed))
    assert load == Load(running=2)
    assert load_fields([load] * 3, counted=(0, 0))[:2].tolist() == [6, 0]
