"""Completions over a scripted pipeline: prompts in all forms, echo, legacy logprobs, best_of, and stream equal to whole answer."""

import asyncio

import pytest

from smg.api.openai.completions import completions
from smg.errors import EngineUnavailable
from smg.types.event import Content, Finished, PromptLogprobs, Started, TokenLogprob, TopLogprob, Usage
from smg.types.job import Logprobs, TextInput, TokenInput
from tests.api.fake import HELLO, STARTED, USAGE, FakePipeline, answer, call, events, first_write, request, services


def whole(script, **fields):
    return answer(completions, {"model": "m", "prompt": "Hi!", **fields}, services(FakePipeline(script)))


def stream(script, **fields):
    body = {"model": "m", "prompt": "Hi!", "stream": True, **fields}
    return events(call(completions, body, services(FakePipeline(script)))[0])


def joined(chunks):
    choices: dict[int, dict] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            made = choices.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": None, "finish_reason": None})
            made["text"] += part["text"]
            if part["logprobs"] is not None:
                made["logprobs"] = made["logprobs"] or {name: [] for name in part["logprobs"]}
                for name, values in part["logprobs"].items():
                    made["logprobs"][name] += values
            made["finish_reason"] = part["finish_reason"] or made["finish_reason"]
            if "matched_stop" in part:
                made["matched_stop"] = part["matched_stop"]
    return [choices[i] for i in sorted(choices)]


def same(script, **fields):
    full = whole(script, **fields)["choices"]
    assert joined(stream(script, **fields)) == full
    return full


def token(text, logprob, *top):
    return TokenLogprob(1, text, logprob, tuple(TopLogprob(2, other, score) for other, score in top))


def test_shapes():
    full = whole(HELLO)
    assert (full["object"], full["id"], full["model"]) == ("text_completion", "chatcmpl-1", "m")
    assert full["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]
    assert full["usage"]["total_tokens"] == 5
    chunks = stream(HELLO, stream_options={"include_usage": True})
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "lo", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1]["usage"] == full["usage"]


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("a", [TextInput(text="a")]),
        (["a", "b"], [TextInput(text="a"), TextInput(text="b")]),
        ([5, 6], [TokenInput(ids=(5, 6))]),
        ([[5], [6, 7]], [TokenInput(ids=(5,)), TokenInput(ids=(6, 7))]),
    ],
)
def test_prompt_forms(prompt, inputs):
    pipeline = FakePipeline()
    full = answer(completions, {"model": "m", "prompt": prompt, "max_tokens": 3}, services(pipeline))
    assert sorted(map(repr, (job.input for job in pipeline.jobs))) == sorted(map(repr, inputs))
    assert [choice["index"] for choice in full["choices"]] == list(range(len(inputs)))
    assert full["usage"]["prompt_tokens"] == 3 * len(inputs)
    assert len({job.request_id for job in pipeline.jobs}) == len(inputs)


def test_index_is_prompt_times_n_plus_choice():
    def script(job):
        text = job.input.text
        return [[STARTED], [Content(1, text + "1"), Content(0, text + "0")], [Finished(0, "stop"), Finished(1, "length"), USAGE]]

    full = same(script, prompt=["a", "b"], n=2)
    assert [(choice["text"], choice["finish_reason"]) for choice in full] == [
        ("a0", "stop"), ("a1", "length"), ("b0", "stop"), ("b1", "length"),
    ]  # fmt: skip


def test_prompts_run_at_the_same_time_and_one_error_ends_all():
    pipeline = FakePipeline(lambda job: [[STARTED], EngineUnavailable("gone")] if job.input.text == "b" else [[STARTED], "hang"])
    with pytest.raises(EngineUnavailable):
        call(completions, {"model": "m", "prompt": ["a", "b", "c"]}, services(pipeline))
    assert (pipeline.running, len(pipeline.closed)) == (0, 3)


def test_closing_the_stream_closes_every_prompt():
    async def run():
        pipeline = FakePipeline([[STARTED], [Content(0, "x")], "hang"])
        reply = await completions(request({"model": "m", "prompt": ["a", "b"], "stream": True}), services(pipeline))
        await first_write(reply)
        return pipeline.running, len(pipeline.closed)

    assert asyncio.run(run()) == (0, 2)


def test_max_tokens_defaults_as_at_openai():
    pipeline = FakePipeline()
    answer(completions, {"model": "m", "prompt": "a"}, services(pipeline))
    assert pipeline.jobs[0].sampling.max_tokens == 16


def test_echo():
    assert same(HELLO, echo=True)[0]["text"] == "Hi!Hello"


def test_echo_of_token_ids_decodes_them():
    script = [[Started(engine="e", prompt_ids=[72, 105])], [Content(0, "!")], [Finished(0, "stop"), USAGE]]
    assert same(script, prompt=[72, 105], echo=True)[0]["text"] == "Hi!"


def test_legacy_logprobs():
    script = [
        [STARTED],
        [Content(0, "Hé", (token(b"H", -0.5, (b"H", -0.5), (b"J", -1.0)), token(b"\xc3", -0.25), token(b"\xa9", -0.125)))],
        [Content(0, "!", (token(b"!", float("-inf")),))],
        [Finished(0, "stop"), USAGE],
    ]
    assert same(script, logprobs=2)[0]["logprobs"] == {
        "tokens": ["H", "bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-0.5, -0.25, -0.125, -9999.0],
        "top_logprobs": [{"H": -0.5, "J": -1.0}, {"bytes:\\xc3": -0.25}, {"bytes:\\xa9": -0.125}, {"!": -9999.0}],
        "text_offset": [0, 1, 1, 2],
    }


PROMPT_SCORES = PromptLogprobs((token(b"<s>", None), token(b"Hi", -1.0, (b"Ho", -2.0)), token(b"!", -3.0)))
ECHOED = {
    "tokens": ["<s>", "Hi", "!", "Hel"],
    "token_logprobs": [None, -1.0, -3.0, -0.5],
    "top_logprobs": [None, {"Ho": -2.0, "Hi": -1.0}, {"!": -3.0}, {"Hel": -0.5}],
    "text_offset": [0, 0, 2, 3],
}


@pytest.mark.parametrize("late", [False, True])
def test_echo_with_logprobs_waits_for_the_prompts(late):
    content = [Content(0, "Hel", (token(b"Hel", -0.5),))]
    lists = [content, [PROMPT_SCORES]] if late else [[PROMPT_SCORES], content]
    made = same([[STARTED], *lists, [Finished(0, "stop"), USAGE]], echo=True, logprobs=1)[0]
    assert (made["text"], made["logprobs"]) == ("Hi!Hel", ECHOED)


def test_echo_with_logprobs_asks_for_the_prompts():
    pipeline = FakePipeline()
    answer(completions, {"model": "m", "prompt": "a", "echo": True, "logprobs": 2}, services(pipeline))
    assert pipeline.jobs[0].logprobs == Logprobs(output=2, prompt=2)


def test_an_engine_that_forgets_the_prompts_logprobs_loses_no_text():
    assert same(HELLO, echo=True, logprobs=1)[0]["text"] == "Hi!Hello"


def test_max_tokens_0_scores_the_prompt_alone():
    script = [[STARTED], [PROMPT_SCORES], [Content(0, "x", (token(b"x", -1.0),))], [Finished(0, "stop", "y"), USAGE]]
    full = whole(script, echo=True, logprobs=1, max_tokens=0)
    assert full["choices"][0]["text"] == "Hi!"
    assert full["choices"][0]["logprobs"]["tokens"] == ["<s>", "Hi", "!"]
    assert (full["choices"][0]["finish_reason"], full["usage"]["completion_tokens"]) == ("length", 0)
    same(script, echo=True, logprobs=1, max_tokens=0)


def test_best_of_tells_the_likeliest():
    lists = [
        [
            Content(0, "bad", (token(b"bad", -3.0),)),
            Content(1, "best", (token(b"best", -0.1),)),
            Content(2, "good", (token(b"good", -1.0),)),
        ],
        [Finished(0, "stop"), Finished(1, "stop"), Finished(2, "stop")],
        [Usage(prompt_tokens=1, completion_tokens=3)],
    ]
    pipeline = FakePipeline([[STARTED], *lists])
    full = answer(completions, {"model": "m", "prompt": "a", "best_of": 3, "n": 2}, services(pipeline))
    assert [(one["index"], one["text"], one["logprobs"]) for one in full["choices"]] == [(0, "best", None), (1, "good", None)]
    assert full["usage"]["completion_tokens"] == 3
    assert (pipeline.jobs[0].sampling.n, pipeline.jobs[0].logprobs.output) == (3, 0)


def test_matched_stop():
    assert same([[STARTED], [Content(0, "a")], [Finished(0, "stop", 42), USAGE]])[0]["matched_stop"] == 42
