"""The stop matcher against a plain search, in every division of the text."""

from hypothesis import given
from hypothesis import strategies as st

from smg.pipeline.stop import StopMatcher

TEXT = st.text(alphabet="abc#é", max_size=40)
STOPS = st.lists(st.text(alphabet="abc#é", min_size=1, max_size=5), max_size=4).map(tuple)


def expected(text: str, stops: tuple[str, ...], *, include: bool) -> tuple[str, str | None]:
    """Earliest end wins, then the longest: by trying every end."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: tuple[str, ...], *, include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include=include)
    shown = "".join(matcher.feed(piece) for piece in pieces)
    return shown + matcher.finish(), matcher.matched


@given(TEXT, STOPS, st.booleans())
def test_equals_a_plain_search_in_every_division(text: str, stops: tuple[str, ...], include: bool) -> None:
    want = expected(text, stops, include=include)
    assert run([text], stops, include=include) == want
    assert run(list(text), stops, include=include) == want
    for cut in range(len(text) + 1):
        assert run([text[:cut], text[cut:]], stops, include=include) == want


def test_b60_partial_stop_never_leaks() -> None:
    matcher = StopMatcher(("DEFGHIJ",))
    assert [matcher.feed(piece) for piece in ("ABC", "DEF", "G", "HI", "J", "K")] == ["ABC", "", "", "", "", ""]
    assert matcher.matched == "DEFGHIJ"


def test_b61_stop_need_not_align_with_tokens() -> None:
    assert run(["AB", "CD"], ("BC",), include=False) == ("A", "BC")
    assert run(["AB", "CD"], ("BC",), include=True) == ("ABC", "BC")


def test_b62_holds_only_what_may_become_a_stop() -> None:
    matcher = StopMatcher(("#" * 40,))
    assert matcher.feed("Hel") == "Hel"
    assert matcher.feed("lo#") == "lo"
    assert matcher.feed("!") == "#!"


def test_unarmed_text_is_followed_but_not_ended() -> None:
    matcher = StopMatcher(("ab",))
    assert matcher.feed("xab a", armed=False) == "xab "
    assert matcher.feed("b") == ""
    assert matcher.matched == "ab"


def test_a_long_stop_string_costs_one_step_a_character() -> None:
    steps = 0

    class Counting(StopMatcher):
        def _step(self, char: str) -> None:
            nonlocal steps
            steps += 1
            super()._step(char)

    matcher = Counting(("a" * 9_999 + "b",))
    shown = "".join(matcher.feed("aaaa") for _ in range(10_000))
    assert matcher.matched is None
    assert shown + matcher.finish() == "a" * 40_000
    assert steps == 40_000
