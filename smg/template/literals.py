"""Finds a client's look-alikes of control tokens in a rendered prompt (known-bugs B79). In: the client's objects and a way to render them;
out: the spans of the prompt in which nothing is a control token.

The look-alikes are replaced by unguessable words and the conversation is rendered again: where the words come out, the look-alikes stand in
the prompt, provided that both prompts are otherwise the same. Where they are not (the template parses the client's text), each text is
tried alone, and in the end the part of the prompt that changes with it counts as the client's. Most requests have no look-alike: for those
this costs one search of each text.
"""

import re
import secrets
from collections.abc import Callable, Iterator

from msgspec import Struct

from smg.template.marks import MarkFinder
from smg.tokenizer.base import Span
from smg.types.json import Json, JsonObject

__all__ = ["Sources", "literal_spans"]

RENDERS = 48  # at most this many for one prompt; beyond, whatever is not understood counts as the client's
NARROW_ROLES = ("system", "developer", "assistant")

# Renders what the client sent and gives the prompt, or None when the template refuses.
Render = Callable[["Sources"], str | None]
# Rewrites one text of the client's: its number, the text, whether the wide set of marks counts.
Rewrite = Callable[[int, str, bool], str]


class Sources(Struct, frozen=True, kw_only=True):
    """Everything of a prompt that the client wrote."""

    messages: list[JsonObject]
    tools: Json
    documents: Json
    kwargs: JsonObject

    def rewritten(self, rewrite: Rewrite) -> "Sources":
        """Gives a copy in which `rewrite` was applied to every text and key, in a fixed order."""
        walk = _Walk(rewrite)
        return Sources(
            messages=[walk.copy(message, wide=_wide(message)) for message in self.messages],  # type: ignore[misc]  # a mapping gives a mapping
            tools=walk.copy(self.tools, wide=True),
            documents=walk.copy(self.documents, wide=True),
            kwargs={name: walk.copy(value, wide=True) for name, value in self.kwargs.items()},
        )

    def touched(self, finder: MarkFinder) -> bool:
        """True when some text or key has a look-alike."""
        for message in self.messages:
            if not finder.clears(message) and _touched(message, finder, wide=_wide(message)):
                return True
        for several in (self.tools, self.documents):
            for value in several if isinstance(several, list) else ():
                if not finder.clears(value) and _touched(value, finder, wide=True):
                    return True
        return bool(self.kwargs) and _touched(list(self.kwargs.values()), finder, wide=True)


def _wide(message: JsonObject) -> bool:
    return message.get("role") not in NARROW_ROLES


def _texts(value: Json) -> Iterator[str]:
    """Every text and key in a value."""
    pending: list[Json] = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
            pending += value


def _touched(value: Json, finder: MarkFinder, *, wide: bool) -> bool:
    return any(finder.touches(text, wide=wide) for text in _texts(value))


class _Walk:
    """Copies values; numbers their texts in order."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self._count = -1

    def copy(self, value: Json, *, wide: bool) -> Json:
        if isinstance(value, str):
            self._count += 1
            return self._rewrite(self._count, value, wide)
        if isinstance(value, list):
            return [self.copy(item, wide=wide) for item in value]
        if isinstance(value, dict):
            return {str(self.copy(key, wide=wide)): self.copy(item, wide=wide) for key, item in value.items()}
        return value


def literal_spans(text: str, sources: Sources, *, finder: MarkFinder, render: Render) -> tuple[Span, ...]:
    """Gives sorted spans of `text`, the prompt rendered from `sources`, that hold the client's look-alikes; `touched` told of some."""
    search = _Search(text, sources, finder, render)
    spans = search.together()
    return tuple(_merged(search.one_by_one() if spans is None else spans))


class _Search:
    """The renders for one prompt."""

    def __init__(self, text: str, sources: Sources, finder: MarkFinder, render: Render) -> None:
        self._text = text
        self._sources = sources
        self._finder = finder
        self._render = render
        self._word = f"Mk{secrets.token_hex(8)}x"
        self._pattern = re.compile(rf"{self._word}([0-9a-f]+)z")

    def together(self, only: int | None = None, *, spare: bool = False) -> list[Span] | None:
        """Marks every look-alike, or those of one text; `spare` leaves marks alone that the template itself writes. None: no fit."""
        found: list[str] = []

        def rewrite(number: int, part: str, wide: bool) -> str:
            if only is not None and number != only:
                return part
            return self._finder.replace(part, self._namer(found), wide=wide, spare=spare)

        rendered = self._render(self._sources.rewritten(rewrite))
        return None if rendered is None else self._positions(rendered, found)

    def _namer(self, found: list[str]) -> Callable[[str], str]:
        def name(original: str) -> str:
            found.append(original)
            return f"{self._word}{len(found) - 1:x}z"

        return name

    def _positions(self, rendered: str, found: list[str]) -> list[Span] | None:
        spans: list[Span] = []
        parts: list[str] = []
        length = done = 0
        for match in self._pattern.finditer(rendered):
            number = int(match[1], 16)
            if number >= len(found):
                return None
            before, original = rendered[done : match.start()], found[number]
            length += len(before)
            spans.append((length, length + len(original)))
            length += len(original)
            parts += (before, original)
            done = match.end()
        parts.append(rendered[done:])
        return spans if "".join(parts) == self._text else None

    def one_by_one(self) -> list[Span]:
        """Each text alone: most are placed exactly; those that the template parses are handled by `_parsed`."""
        spans: list[Span] = []
        renders = 0
        left: list[int] = []
        for number, assistant in self._touched():
            alone = self.together(number) if renders < RENDERS else None
            renders += 1
            if alone is None and renders < RENDERS:
                alone = self.together(number, spare=True)
                renders += 1
                if not assistant:  # what a template makes of an assistant's own marks is its contract with the model
                    left.append(number)
            elif alone is None:
                left.append(number)
            spans += alone or []
        for number in left if renders + len(left) <= RENDERS else ():
            spans += self._changed({number})
        return spans if renders + len(left) <= RENDERS else [*spans, *self._changed(set(left))]

    def _touched(self) -> list[tuple[int, bool]]:
        """The numbers of the texts with look-alikes, and whether an assistant wrote them."""
        touched: list[tuple[int, bool]] = []

        def look(number: int, part: str, wide: bool) -> str:
            if self._finder.touches(part, wide=wide):
                touched.append((number, number in assistants))
            return part

        assistants: set[int] = set()
        count = 0
        for message in self._sources.messages:
            texts = sum(1 for _ in _texts(message))
            if message.get("role") == "assistant":
                assistants.update(range(count, count + texts))
            count += texts
        self._sources.rewritten(look)
        return touched

    def _changed(self, numbers: set[int]) -> list[Span]:
        """The part of the prompt that is another when these texts have no look-alikes."""

        def rewrite(number: int, part: str, wide: bool) -> str:
            return self._finder.replace(part, lambda _: "", wide=wide) if number in numbers else part

        neutral = self._render(self._sources.rewritten(rewrite))
        if neutral is None or neutral == self._text:
            return []
        start = _common(self._text, neutral)
        shorter = min(len(self._text), len(neutral))
        end = min(_common(self._text[::-1], neutral[::-1]), shorter - start)
        return [(start, len(self._text) - end)]


def _common(one: str, other: str) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _merged(spans: list[Span]) -> Iterator[Span]:
    """Sorted, without empty or overlapping ones."""
    last: Span | None = None
    for span in sorted(spans):
        if span[0] >= span[1]:
            continue
        if last is not None and span[0] < last[1]:
            last = (last[0], max(last[1], span[1]))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
