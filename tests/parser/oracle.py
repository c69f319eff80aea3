"""The oracles of known-bugs.md as functions: O1 split, O2 mode, O3 arguments, O4 clean. Used by all tests of parsers."""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from smg._ext import Collector
from smg.parser import Call, CallArguments, Parser, Piece, Text, Thought, build
from smg.types.json import JsonObject


class Made(Struct, frozen=True, kw_only=True):
    """One call of an outcome. `id` is None where the family leaves it to the caller."""

    name: str
    arguments: str
    id: str | None = None

    def value(self) -> object:
        return json.loads(self.arguments)


class Outcome(Struct, frozen=True, kw_only=True):
    """What a whole output came to."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Made, ...] = ()


def tools_named(*names: str, **parameters: object) -> tuple[JsonObject, ...]:
    """Tools in OpenAI's form, all with the same properties."""
    schema = {"type": "object", "properties": parameters}
    return tuple({"type": "function", "function": {"name": name, "parameters": schema}} for name in names)


def joined(pieces: Iterable[Piece]) -> Outcome:
    """Joins pieces, and checks their order: O3, name once and whole, before its arguments, indexes in order."""
    content, reasoning, heads, arguments = [], [], [], []
    for piece in pieces:
        match piece:
            case Text(text):
                assert text, "an empty piece"
                content.append(text)
            case Thought(text):
                assert text, "an empty piece"
                reasoning.append(text)
            case Call(index, name, call_id):
                assert index == len(heads), "indexes count the calls"
                assert name.strip() == name != "", "a name is whole"
                heads.append((name, call_id))
                arguments.append([])
            case CallArguments(index, text):
                assert index == len(heads) - 1, "arguments follow their own call"
                assert text, "an empty piece"
                arguments[index].append(text)
    calls = tuple(Made(name=name, arguments="".join(parts), id=call_id) for (name, call_id), parts in zip(heads, arguments, strict=True))
    return Outcome(content="".join(content), reasoning="".join(reasoning), calls=calls)


def alike(specified: Parser, native: Parser, deltas: Iterable[str]) -> Iterator[list[Piece]]:
    """Yields what both parsers give with each delta, and at the end. Ids that are drawn at random may differ."""
    assert isinstance(native, Collector)
    assert not isinstance(specified, Collector)
    for delta in (*deltas, None):
        pieces = specified.finish() if delta is None else specified.feed(delta)
        got = native.finish() if delta is None else native.feed(delta)
        if got != pieces:
            assert [without_id(piece) for piece in got] == [without_id(piece) for piece in pieces], f"at {delta!r}"
        yield pieces


def without_id(piece: Piece) -> Piece:
    """A piece with a drawn id, which is Mistral's, without it."""
    drawn = isinstance(piece, Call) and piece.id is not None and re.fullmatch(r"[A-Za-z0-9]{9}", piece.id)
    return structs.replace(piece, id="drawn") if drawn else piece


class Setting(Struct, frozen=True, kw_only=True):
    """Which parsers read an output."""

    tool: str | None = None
    reasoning: str | None = None
    tools: tuple[JsonObject, ...] = ()
    in_think: bool = False

    def pieces(self, deltas: Sequence[str]) -> list[list[Piece]]:
        """What leaves with each delta, and at the end: the same from the native parser and from the one that is its specification."""
        made = [build(reasoning=self.reasoning, tool=self.tool, tools=self.tools, in_think=self.in_think, native=n) for n in (False, True)]
        if made[0] is None or made[1] is None:
            assert made == [None, None]
            return [[Text(delta)] for delta in deltas if delta]
        return list(alike(made[0], made[1], deltas))

    def outcome(self, deltas: Sequence[str]) -> Outcome:
        """What the deltas come to; ids that are drawn at random are left out."""
        made = joined(piece for pieces in self.pieces(deltas) for piece in pieces)
        if self.tool != "mistral":
            return made
        return Outcome(
            content=made.content, reasoning=made.reasoning, calls=tuple(Made(name=c.name, arguments=c.arguments) for c in made.calls)
        )


def pieces_of(text: str, seed: int) -> list[str]:
    """The text in random pieces of 0 to 7 characters."""
    source, at, parts = random.Random(seed), 0, []
    while at < len(text):
        size = source.randrange(8)
        parts.append(text[at : at + size])
        at += size
    return parts


def check_splits(setting: Setting, text: str, *, cuts: int | None = None) -> Outcome:
    """O1 and O2: whole, by character, in random pieces and cut in two (everywhere, or at `cuts` places). Gives the outcome."""
    whole = setting.outcome([text])
    assert setting.outcome(list(text)) == whole
    for seed in range(3):
        assert setting.outcome(pieces_of(text, seed)) == whole
    places = range(len(text) + 1)
    for at in places if cuts is None else random.Random(len(text)).sample(places, min(cuts, len(places))):
        assert setting.outcome([text[:at], text[at:]]) == whole, f"cut at {at}: {text[:at]!r}"
    return whole


def check_clean(outcome: Outcome, marks: Iterable[str]) -> None:
    """O4: no mark in what is shown, nor in names."""
    for mark in marks:
        for text in (outcome.content, outcome.reasoning, *(call.name for call in outcome.calls)):
            assert mark not in text, f"{mark} in {text!r}"
