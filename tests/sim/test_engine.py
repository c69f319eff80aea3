"""The engine behind the protocols: scripts, outputs, timing, determinism, the embedded model and its training."""

import argparse
import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg.pb import vllm_engine_pb2
from smg.sim.command import add_arguments, options_from
from smg.sim.cost import CostModel
from smg.sim.model import load_model
from smg.sim.options import SimOptions
from smg.sim.output import score_token, user_text
from smg.sim.script import Fault, Script, ScriptError, parse_fault, parse_marker
from smg.sim.server import Sim, start_sim
from smg.sim.toolcall import TOOL_FORMATS, write_tool_call
from smg.sim.train import CORPUS, MODEL_FOLDER, build_files
from smg.sim.wire import distress
from tests.sim.client import PROMPT, ask, complete_of, ids_of, is_complete, play

MODEL = load_model("")


def test_training_again_gives_the_embedded_folder() -> None:
    for name, text in build_files(CORPUS).items():
        assert (MODEL_FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run python -m smg.sim.train"


def test_embedded_model_is_small_and_whole() -> None:
    files = [path for path in MODEL_FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"):
        assert len(MODEL.encode(token)) == 1, token
    assert MODEL.special_ids == {MODEL.encode(token)[0] for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")}
    assert MODEL.decode(MODEL.encode("<|im_end|>"), skip_special_tokens=False) == "<|im_end|>"


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_embedded_tokenizer_loses_nothing(text: str) -> None:
    assert MODEL.decode(MODEL.encode(text), skip_special_tokens=False) == text


def test_marker() -> None:
    base = Script()
    assert parse_marker("no marker", base=base) is base
    last = parse_marker('[[sim: tokens=1]] x [[sim: tokens=40 fault=rst@3 ttft_ms=200 text="say \\"hi\\" [1]"]]', base=base)
    assert last == Script(output="text", text='say "hi" [1]', tokens=40, fault=Fault(kind="rst", at=3), ttft_ms=200.0)
    assert parse_marker("[[sim: ids=5,6 eos=false]]", base=base) == Script(output="ids", ids=(5, 6), eos=False)
    assert parse_marker("[[sim: tool=add]]", base=base).output == "tool"


@pytest.mark.parametrize(
    "body", ["nonsense=1", "tokens=many", "fault=melt", "stray words", 'text="open', "tokens", "fault=rst@x", "output=song"]
)
def test_marker_that_is_wrong(body: str) -> None:
    with pytest.raises(ScriptError):
        parse_marker(f"[[sim: {body}]]", base=Script())


def test_fault() -> None:
    assert parse_fault("error:UNAVAILABLE@3") == Fault(kind="error", code="UNAVAILABLE", at=3)
    assert parse_fault("die") == Fault(kind="die")


def test_user_text_of_other_templates() -> None:
    assert user_text(MODEL.encode("just a prompt"), model=MODEL) == "just a prompt"
    split = "<|im_start|>user<|im_end|>\n\nHello<|endoftext|><|im_start|>assistant<|im_end|>\n\n"
    assert user_text(MODEL.encode(split), model=MODEL) == "Hello"
    chat = "<|im_start|>user\nfirst<|im_end|>\n<|im_start|>assistant\nuser<|im_end|>\n<|im_start|>user\nlast\nline<|im_end|>\n"
    assert user_text(MODEL.encode(f"{chat}<|im_start|>assistant\n"), model=MODEL) == "last\nline"


@pytest.mark.parametrize("family", TOOL_FORMATS)
def test_tool_formats_hold_name_and_arguments(family: str) -> None:
    text = write_tool_call("add", arguments={"a": 17, "text": "ä"}, family=family)
    assert "add" in text
    assert "17" in text
    assert "ä" in text


def test_scripted_outputs() -> None:
    async def scene(sim: Sim) -> None:
        async def text_of(marker: str, **fields: Any) -> str:
            return sim.engine.model.decode(ids_of(await ask(sim, f"Hi [[sim: {marker}]]", **fields)))

        assert await text_of('text="Bonjour !"') == "Bonjour !"
        assert await text_of('think="hm" text="yes"') == "<think>\nhm\n</think>\n\nyes"
        call = await text_of('tool=add text="{\\"a\\": 1}" tool_format=hermes')
        assert call == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        assert ids_of(await ask(sim, "Hi [[sim: ids=300,301]]")) == [300, 301, sim.engine.model.eos_ids[0]]
        assert len(ids_of(await ask(sim, "Hi [[sim: eos=false]]", max_tokens=50))) == 50
        parts = await ask(sim, "Hi [[sim: eos=false]]")
        assert complete_of(parts).finish_reason == "length", "at the end of the context"

    play(scene, context_length=256)


def test_output_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file", encoding="utf-8")
    (tmp_path / "ids").write_text("300, 301\n302", encoding="utf-8")

    async def text(sim: Sim) -> None:
        assert sim.engine.model.decode(ids_of(await ask(sim))) == "from a file"

    async def ids(sim: Sim) -> None:
        assert ids_of(await ask(sim))[:-1] == [300, 301, 302]

    play(text, output="text", text=f"@{tmp_path / 'text'}")
    play(ids, output="ids", ids_file=str(tmp_path / "ids"))


def test_model_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    shutil.copytree(MODEL_FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 99}))

    async def scene(sim: Sim) -> None:
        assert (sim.engine.model.name, sim.engine.model.context_length) == ("my-model", 99)

    play(scene, model=str(folder))
    with pytest.raises(FileNotFoundError):
        load_model(str(tmp_path))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_model(str(folder))


def test_same_seed_same_engine() -> None:
    async def answers(seed: int) -> list[bytes]:
        sim = await start_sim(seed=seed)
        try:
            return [part.SerializeToString(deterministic=True) for part in await ask(sim, logprobs=3, n=2)]
        finally:
            await sim.close()

    async def run() -> list[list[bytes]]:
        return [sorted(await answers(seed)) for seed in (1, 1, 2)]

    first, again, other = asyncio.run(run())
    assert first == again
    assert first != other


def test_scores_are_log_probabilities() -> None:
    value, ids, values = score_token(7, position=3, count=4, vocab_size=100, seed=0)
    assert value < 0
    assert ids[0] == 7
    assert values[0] == value
    assert values == sorted(values, reverse=True)
    assert len(set(ids)) == 4


def test_stream_interval() -> None:
    async def scene(sim: Sim) -> None:
        parts = [part for part in await ask(sim, max_tokens=8) if not is_complete(part)]
        assert [len(part.token_ids) for part in parts] == [3, 3, 2]
        assert [part.completion_tokens for part in parts] == [3, 6, 8]

    play(scene, protocol="sglang", stream_interval=3)


def test_cost_model() -> None:
    cost = CostModel(prefill_base_ms=10, prefill_token_us=100, step_base_ms=5, step_sequence_us=500, speed=2)
    assert cost.prefill_s(100) == pytest.approx(0.010)
    assert cost.step_s(10) == pytest.approx(0.005)
    assert cost.prefill_s(0) == cost.step_s(0) == 0
    assert CostModel(speed=0).prefill_s(10**6) == 0
    long = CostModel(step_base_ms=1, step_sequence_us=500, step_token_us=2, speed=2)
    assert long.step_s(2, context=1000) == pytest.approx(0.002)
    assert CostModel().step_s(2, context=1000) == CostModel().step_s(2)


def test_a_step_may_read_the_weights_while_it_computes_prompts() -> None:
    """The longer of the prompts' time and the step's base counts, and what the sequences add."""
    added, shared = (CostModel(prefill_base_ms=4, prefill_token_us=10, step_base_ms=8, step_overlap=part) for part in (0.0, 1.0))
    assert added.mixed_s(1000, 2) == pytest.approx(0.0221)
    assert shared.mixed_s(1000, 2) == pytest.approx(0.0141)
    assert shared.mixed_s(100, 2) == pytest.approx(0.0081)
    assert CostModel(step_overlap=0.5, speed=2).mixed_s(1000, 0) == pytest.approx(0.0185)
    assert shared.mixed_s(0, 2) == added.mixed_s(0, 2) == added.step_s(2)
    assert CostModel(step_overlap=1, speed=0).mixed_s(5, 5) == 0


def test_a_step_takes_longer_over_long_contexts() -> None:
    async def scene(sim: Sim) -> None:
        start = time.monotonic()
        tokens = complete_of(await ask(sim, rid="a", max_tokens=4)).prompt_tokens
        assert time.monotonic() - start >= 4 * 0.002 * tokens

    play(scene, speed=1.0, prefill_base_ms=0.0, prefill_token_us=0.0, step_base_ms=0.0, step_sequence_us=0.0, step_token_us=2_000.0)


def test_prefill_of_cached_tokens_is_free() -> None:
    async def scene(sim: Sim) -> None:
        times = []
        for rid in ("a", "b"):
            start = time.monotonic()
            await ask(sim, rid=rid, max_tokens=1)
            times.append(time.monotonic() - start)
        assert times[0] >= 1.0
        assert times[1] < times[0] - 0.25

    play(scene, speed=1.0, prefill_base_ms=0.0, prefill_token_us=40_000.0, step_base_ms=0.0)


def test_batch_is_limited_and_continuous() -> None:
    async def scene(sim: Sim) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, sim.counters.running)
                await asyncio.sleep(0)

        watcher = asyncio.ensure_future(watch())
        answers = await asyncio.gather(*(ask(sim, f"{number} {PROMPT}", rid=str(number)) for number in range(12)))
        watcher.cancel()
        assert all(complete_of(parts).finish_reason == "stop" for parts in answers)
        assert most == 4
        assert sim.counters.finished == 12

    play(scene, max_running=4)


def test_flags_are_made_of_the_options() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert options_from(parser.parse_args([])) == SimOptions()
    args = parser.parse_args(["--protocol", "mlx", "--port", "7", "--no-prefix-cache", "--speed", "2.5", "--allow-scripts"])
    assert options_from(args) == SimOptions(protocol="mlx", port=7, prefix_cache=False, speed=2.5, allow_scripts=True)
    with pytest.raises(msgspec.ValidationError):
        options_from(parser.parse_args(["--port", "70000"]))


def test_unknown_option_of_start_sim() -> None:
    with pytest.raises(msgspec.ValidationError):
        asyncio.run(start_sim(bloc_size=3))


def test_distress_is_a_protobuf_message_with_one_unknown_field() -> None:
    message = vllm_engine_pb2.GenerateResponse.FromString(distress("rst", 2))
    assert message.WhichOneof("response") is None
    assert message.SerializeToString() == distress("rst", 2)
