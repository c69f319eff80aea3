"""Blocks of ASCII against the splits that look at one character after the other: the same words, wherever a block begins and ends."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import Ascii, Splits
from smg.tokenizer.blocks import ascii_rule
from smg.tokenizer.characters import characters
from smg.tokenizer.splitting import GPT2, program_of

START, UPPERS, LOWERS = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = f"{START}[{UPPERS}]*[{LOWERS}]+{ENDING}?|{START}[{UPPERS}]+[{LOWERS}]*{ENDING}?"
HANLESS = CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
SIGNS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
DIGITS = {"type": "Digits", "individual_digits": True}

PATTERNS: dict[str, tuple[Any, ...]] = {
    "gpt2": (GPT2,),
    "digits, gpt2": (DIGITS, GPT2),
    "runs of digits, gpt2": ({"type": "Digits"}, GPT2),
    "qwen2": (rf"{ENDING}|{START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",),
    "llama3": (rf"{ENDING}|{START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",),
    "o200k": (rf"{CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",),
    "kimi": (rf"[\p{{Han}}]+|{HANLESS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",),
    "deepseek": (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        rf"{SIGNS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
    ),
}


def program(name: str) -> list[list[Any]]:
    steps = [
        part if isinstance(part, dict) else {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": part}} for part in PATTERNS[name]
    ]
    known = program_of(
        {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    )
    assert known is not None
    return known


RULES = {name: ascii_rule(program(name)) for name in PATTERNS}


def places(splits: Splits, text: str) -> list[int]:
    """Where words begin, in bytes, and the end."""
    at = [0]
    for word in splits.cuts(text):
        at.append(at[-1] + len(word.encode()))
    return at


def agree(name: str, text: str) -> int:
    """Compares the block that begins at each word; gives how many words were found."""
    rule, data = RULES[name], text.encode()
    assert rule is not None
    expected = places(Splits(characters(), program(name)), text)
    words = 0
    for i, at in enumerate(expected[:-1]):
        found = [at + place for place in rule.cuts(data[at:])]
        assert found == expected[i + 1 : i + 1 + len(found)], (text, at)
        words += len(found)
    return words


# What classes and rules tell apart, and pieces that only together mean something.
LETTERS = "aAsStTdDmMlLrRvVeEzZ"
PIECES = [
    *LETTERS,
    *"0123456789",
    *"''''",
    *" \n\r\t\v\f  ",
    *"/.,!@[`{~_\x00\x1c\x1f\x7f",
    "é",
    "ſ",
    "你",
    "\u0301",
    "\u3000",
    "²",
    "'s",
    "'ll",
    "'RE",
]
RUNS = st.tuples(st.sampled_from(PIECES), st.integers(1, 3)).map(lambda run: run[0] * run[1])


@pytest.mark.parametrize("name", PATTERNS)
@settings(deadline=None, max_examples=120)
@given(st.lists(RUNS, max_size=60).map("".join))
def test_random_pieces(name: str, text: str) -> None:
    agree(name, text)


@pytest.mark.parametrize("name", PATTERNS)
def test_all_pairs_and_the_edges_of_blocks(name: str) -> None:
    """Any two characters of ASCII beside each other, at any place of a block."""
    rng = random.Random(1)
    known = [chr(code) for code in range(128)]
    for first in known:
        agree(name, "".join(f"{first}{second}{rng.choice(LETTERS)}{rng.choice(PIECES)}" for second in known))
    for size in (1, 2, 3, 15, 16, 59, 60, 61, 62, 63, 64, 65, 66, 127, 128):
        for filler in ("x", " ", "7", ".", "\n", "aB"):
            start = (filler * size)[:size]
            for middle in ("'s", "'ll", "'", "  a", " \n \n a", ".\n/\n", "12345", "é", " ", "."):
                agree(name, f"{start}{middle}{filler}b c")


@pytest.mark.parametrize("name", PATTERNS)
def test_nearly_all_words_are_found_in_blocks(name: str) -> None:
    text = "The quick brown Fox, it's said, jumped over 12 lazy dogs.\n\nAnd then?  It didn't (or did it) 'stop'.\n" * 3
    starts = places(Splits(characters(), program(name)), text)
    rule, found, at = RULES[name], 0, 0
    assert rule is not None
    while cuts := rule.cuts(text[at:].encode()):
        found += len(cuts)
        at += cuts[-1]
    assert (at, found) == (len(text), len(starts) - 1)


def test_programs_of_another_form_have_no_rule() -> None:
    letters, digits, signs, lines, inner, spaces = program("qwen2")[0][1:]
    contraction = program("qwen2")[0][0]
    good = [contraction, letters, digits, signs, lines, inner, spaces]
    assert ascii_rule([good])
    for wrong in (*([*good[:i], *good[i + 1 :]] for i in range(1, 7)), [*good, spaces], [letters, *good], [*good[:-2], spaces, inner], []):
        assert ascii_rule([wrong]) is None, wrong
    cased = program("o200k")[0]
    assert ascii_rule([[contraction, *cased]]) is None
    assert ascii_rule([[lines], good]) is None
    assert ascii_rule([[digits], good]) is None
    assert ascii_rule([]) is None
    for (a, b), swapped in zip(pairwise(range(1, 5)), (good[:] for _ in range(3)), strict=True):
        swapped[a], swapped[b] = swapped[b], swapped[a]
        assert ascii_rule([swapped]) is None


def test_a_rule_is_said_whole() -> None:
    rule = {"signs": True, "spaces": True, "cased": False, "digits": 1, "apart": False, "lines": True, "tail": True, "slashes": False}
    assert Ascii(**rule, contraction="alone", folded=True).cuts(b"it's 10\n") == [2, 4, 5, 6, 7, 8]  # type: ignore[arg-type]
    assert Ascii(**rule, contraction="", folded=True).cuts(b"") == []  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        Ascii(**rule, contraction="some", folded=True)  # type: ignore[arg-type]
