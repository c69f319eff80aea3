"""`Answer`: what engines' closing messages hold, in all the ways that were seen of real ones, and streams that break the rules."""

from typing import Any

import pytest

from smg.engine import EngineDelta, TokenScores
from smg.engine.answer import Answer, finish_of
from smg.errors import EngineError, EngineProtocol
from tests.engine.drive import ids_of, request


def delta(ids: list[int], *, count: int | None = None, **more: Any) -> EngineDelta:
    return EngineDelta(token_ids=ids, completion_tokens=len(ids) if count is None else count, **more)


def scores(*ids: int) -> TokenScores:
    return TokenScores(ids=list(ids), values=[-float(i) for i in ids], top=[([i, 90, 91], [-float(i), -2.0, -0.5]) for i in ids])


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(delta([1, 1, 2, 2, 2], finish="stop"), id="everything again"),
        pytest.param(delta([2, 2], finish="stop"), id="the last delta again, its count alone"),
        pytest.param(delta([2, 2], count=5, finish="stop"), id="the last delta again, total count"),
        pytest.param(delta([], count=5, finish="stop"), id="nothing, total count"),
        pytest.param(delta([], finish="stop"), id="nothing, no count"),
    ],
)
def test_closing_message_adds_nothing(last: EngineDelta) -> None:
    answer = Answer(request())
    taken = [answer.take(step) for step in (delta([1]), delta([1, 2], count=3), delta([2, 2]), last)]
    assert ids_of(taken) == [1, 1, 2, 2, 2]
    assert [step.completion_tokens for step in taken] == [1, 3, 5, 5]
    assert answer.finished


def test_closing_message_adds_what_was_not_seen() -> None:
    answer = Answer(request(logprobs=0))
    taken = [answer.take(delta([7], logprobs=scores(7))), answer.take(delta([7, 7, 8], finish="length", logprobs=scores(7, 7, 8)))]
    assert ids_of(taken) == [7, 7, 8]
    assert [step.logprobs.ids for step in taken if step.logprobs] == [[7], [7, 8]]


def test_count_that_includes_a_trimmed_stop_token() -> None:
    answer = Answer(request())
    taken = [answer.take(delta([4])), answer.take(delta([4], count=2, finish="stop"))]
    assert ids_of(taken) == [4]
    assert taken[-1].completion_tokens == 2


def test_unary_choices_that_all_say_index_0() -> None:
    answer = Answer(request(n=3, stream=False))
    taken = [answer.take(delta([i], finish="stop")) for i in (7, 8, 9)]
    assert [(step.choice, step.token_ids) for step in taken] == [(0, [7]), (1, [8]), (2, [9])]
    assert answer.finished


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([delta([1], choice=1)], id="choice that was not asked for"),
        pytest.param([delta([1], finish="stop"), delta([2])], id="more after the end"),
        pytest.param([delta([1], finish="stop"), delta([1], finish="stop")], id="two ends"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_choices_that_cannot_go_on(steps: list[EngineDelta], stream: bool) -> None:
    answer = Answer(request(stream=stream))
    for step in steps[:-1]:
        answer.take(step)
    with pytest.raises(EngineProtocol):
        answer.take(steps[-1])


def test_alternatives_best_first_and_no_more_than_asked_for() -> None:
    taken = Answer(request(logprobs=2)).take(delta([1], logprobs=scores(1)))
    assert taken.logprobs is not None
    assert taken.logprobs.top == [([91, 1], [-0.5, -1.0])]
    bare = Answer(request(logprobs=0)).take(delta([1], logprobs=scores(1)))
    assert bare.logprobs is not None
    assert bare.logprobs.top == []
    assert Answer(request()).take(delta([1], logprobs=scores(1))).logprobs is None


def test_tokens_without_a_score() -> None:
    taken = Answer(request(logprobs=1)).take(delta([1, 2, 3], logprobs=scores(1, 3)))
    assert taken.logprobs is not None
    assert taken.logprobs.ids == [1, 2, 3]
    assert taken.logprobs.values == [-1.0, None, -3.0]
    assert [len(ids) for ids, _ in taken.logprobs.top] == [1, 0, 1]


def test_scores_that_do_not_fit_themselves() -> None:
    odd = TokenScores(ids=[1], values=[-1.0, -2.0], top=[([1, 2], [-1.0])])
    taken = Answer(request(logprobs=2)).take(delta([1, 2, 3], logprobs=odd))
    assert taken.logprobs is not None
    assert (len(taken.logprobs.ids), len(taken.logprobs.values)) == (3, 3)
    with pytest.raises(EngineProtocol):
        Answer(request(prompt_logprobs=1)).take(delta([1], prompt_logprobs=odd))


def test_prompt_scores_once_a_request() -> None:
    answer = Answer(request(n=2, prompt_logprobs=1))
    taken = [answer.take(delta([1], choice=choice, prompt_logprobs=scores(5, 6))) for choice in (0, 1)]
    assert [step.prompt_logprobs is not None for step in taken] == [True, False]


@pytest.mark.parametrize(
    ("word", "finish"),
    [("stop", "stop"), ("", "stop"), ("length", "length"), ("abort", "abort"), ("cancelled", "abort"), ("tool_calls", "tool_calls")],
)
def test_finish_words(word: str, finish: str) -> None:
    assert finish_of(word) == finish


def test_finish_error_is_an_error() -> None:
    with pytest.raises(EngineError):
        finish_of("error")
