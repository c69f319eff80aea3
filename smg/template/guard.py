"""Bounds on what a chat template may spend: processor time, the size of any text, list or number it makes, and the sum of them.

A template comes with a model or from an operator, and may be wrong or hostile. Compiled templates count the items of loops and calls as
steps, and large texts by their length; each few hundred steps the thread's processor time is looked at. Operations that could make
something huge in one step (`'a' * 10**10`, `'%999999999d'`) are checked before they run.
"""

import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from threading import local
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

__all__ = [
    "LARGE",
    "STEPS_PER_LOOK",
    "Budget",
    "Steps",
    "TooMuch",
    "bounded_concat",
    "bounded_filters",
    "charge",
    "charged",
    "check_call",
    "check_join",
    "check_operator",
    "check_replace",
    "current",
    "looked_at",
    "spend",
    "weighed",
    "weighed_sum",
]

RENDER_SECONDS = 5.0
STEPS_PER_LOOK = 256
TEXT_CHARACTERS = 64 << 20
LARGE = 4096  # characters or items from which a value counts towards what a render makes in all
TOTAL_CHARACTERS = 1 << 30
CHARACTERS_PER_STEP = 256
ITEM_CHARACTERS = 16
NUMBER_BITS = 4096
WIDTH = 10_000
WIDE = re.compile(r"\d{5}|\*")
PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})

SIZED = frozenset({str, list, tuple})
CONTAINERS = (list, tuple, dict)

_current = local()


class TooMuch(TemplateRuntimeError):
    """The template spends more than a render may."""


class Budget:
    """What the renders for one request may spend, for the thread that enters it. Within it, a render of the same thread has no other."""

    __slots__ = ("_deadline", "_made", "_outer", "_seconds", "_weights", "left")

    def __init__(self, seconds: float = RENDER_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = math.inf  # read from the clock at the first look: that is a system call, and most renders end before
        self._made = 0
        self._outer: Budget | None = None
        self._weights: dict[int, tuple[object, int]] = {}  # with the container, so that its id stays its own
        self.left = STEPS_PER_LOOK

    def __enter__(self) -> "Budget":
        self._outer = getattr(_current, "budget", None)
        _current.budget = self
        return self

    def __exit__(self, *_: object) -> None:
        _current.budget = self._outer

    def look(self) -> None:
        """Starts the next stretch of steps; TooMuch when the time is used up."""
        now = time.thread_time()
        if self._deadline == math.inf:
            self._deadline = now + self._seconds
        if now > self._deadline:
            raise TooMuch(f"the template ran for more than {self._seconds:g} s")
        self.left = STEPS_PER_LOOK

    def weight(self, value: Any) -> int:
        """Gives about the characters that a value would be written with; TooMuch above TEXT_CHARACTERS.

        A list that holds another twice is small, and what holds that twice, and so on: written out it doubles at each step.
        """
        if not isinstance(value, CONTAINERS):
            return len(value) if isinstance(value, str) else 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        self.left -= len(value)
        if self.left <= 0:
            self.look()
        total = 1
        for item in value.values() if isinstance(value, dict) else value:
            total += self.weight(item)
            _check_size(total)
        self._weights[id(value)] = (value, total)
        return total

    def weigh_sum(self, value: Any, parts: tuple[Any, Any]) -> None:
        """Notes the weight of a list that was put together from two."""
        total = sum(map(self.weight, parts))
        _check_size(total)
        self._weights[id(value)] = (value, total)

    def charge(self, size: int) -> None:
        """Counts a large value of so many characters or items."""
        self._made += size
        if self._made > TOTAL_CHARACTERS:
            raise TooMuch(f"the template makes more than {TOTAL_CHARACTERS} characters in all")
        self.left -= size // CHARACTERS_PER_STEP
        if self.left <= 0:
            self.look()


def current() -> Budget | None:
    """Gives the budget that this thread has entered."""
    budget: Budget | None = getattr(_current, "budget", None)
    return budget


def spend() -> None:
    """Counts one step of the render that this thread is in."""
    budget: Budget | None = getattr(_current, "budget", None)
    if budget is not None:
        budget.left -= 1
        if budget.left <= 0:
            budget.look()


def charge(size: int) -> None:
    """Counts a large value that the render of this thread makes or goes through."""
    budget: Budget | None = getattr(_current, "budget", None)
    if budget is not None:
        budget.charge(size)


def looked_at(value: Any) -> Any:
    """Gives the value; a large text or list is counted."""
    if type(value) in SIZED and len(value) >= LARGE:
        charge(len(value))
    return value


def weighed(value: Any) -> Any:
    """Gives a list, tuple or dict that the template made; TooMuch when it would be huge if it were written out."""
    budget: Budget | None = getattr(_current, "budget", None)
    if budget is not None:
        budget.weight(value)
    return value


def weighed_sum(left: Any, right: Any, value: Any) -> Any:
    """Gives the value, `left + right`, once a list is weighed and a large text is counted."""
    budget: Budget | None = getattr(_current, "budget", None)
    if budget is None or not isinstance(value, CONTAINERS):
        return looked_at(value)
    budget.weigh_sum(value, (left, right))
    return value


class Steps:
    """An iterable that counts each item as one step; it has a length where the original has one, for `loop.length` asks."""

    __slots__ = ("_budget", "items")

    def __init__(self, items: Iterable[Any], budget: Budget) -> None:
        self.items = items
        self._budget = budget

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]  # the TypeError of a generator is what the caller expects

    def __iter__(self) -> Iterator[Any]:
        return _counted(iter(self.items), self._budget)


def _counted(items: Iterator[Any], budget: Budget) -> Iterator[Any]:
    for item in items:
        budget.left -= 1
        if budget.left <= 0:
            budget.look()
        yield item


def bounded_concat(parts: Iterable[str]) -> str:
    """Joins texts; TooMuch before memory is taken for more than TEXT_CHARACTERS."""
    if type(parts) is list:
        _check_size(sum(map(len, parts)))
        return "".join(parts)
    known: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        _check_size(total)
        known.append(part)
    return "".join(known)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raises TooMuch when the result of a binary operator would be huge."""
    if operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_size((len(left) + len(right)) * _weight(left))
    elif operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(items, str | list | tuple):
                _check_size(len(items) * times * _weight(items))
                _check_size(_written(items) * times)
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > NUMBER_BITS:
            raise TooMuch("the template makes too large a number")
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > NUMBER_BITS:
            raise TooMuch("the template makes too large a number")
    elif operator == "%" and isinstance(left, str):
        _check_format(left, right)


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TooMuch when a text's method would make something huge."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if name in ("format", "format_map") and hasattr(function, "__wrapped__"):
        owner = getattr(function.__wrapped__, "__self__", "")
        _check_format(str(owner), [*args, *kwargs.values()])
        _check_numbers([*args, *kwargs.values()])
    elif not isinstance(owner, str):
        return
    elif name in PADDING_METHODS:
        _check_numbers([*args, *kwargs.values()])
    elif name == "replace" and len(args) >= 2:
        check_replace(owner, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_size(sum(len(part) for part in args[0] if isinstance(part, str)) + len(owner) * len(args[0]))


def bounded_filters(filters: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Gives those of Jinja's filters that could make something huge, with a check before each."""

    def numbers(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)  # with Jinja's note of which filters want the environment first
        def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            _check_numbers(given)
            if any(isinstance(fill, CONTAINERS) for fill in given):
                raise TooMuch("the template fills with lists")
            return original(value, *args, **kwargs)

        return checked

    def formatted(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
            _check_format(str(value), [*args, *kwargs.values()])
            return original(value, *args, **kwargs)

        return checked

    bounded = {name: numbers(filters[name]) for name in ("center", "indent", "batch", "slice", "truncate", "round")}
    return bounded | {"format": formatted(filters["format"])}


def charged(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a filter that counts large values which it gets or makes."""

    @functools.wraps(original)
    def counting(*args: Any, **kwargs: Any) -> Any:
        for given in args[:2]:  # what is filtered is the first, or the second where Jinja gives its own first
            looked_at(given)
        return looked_at(original(*args, **kwargs))

    return counting


def check_replace(text: Any, old: Any, new: Any) -> None:
    """Raises TooMuch when a replacement would make something huge."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        _check_size(len(text) + text.count(old) * len(new))


def check_join(parts: list[Any], between: str) -> None:
    """Raises TooMuch when the texts between the parts alone would be huge."""
    _check_size(len(parts) * len(between))


def _weight(items: Any) -> int:
    """A list takes more memory for an item than a text for a character."""
    return 1 if isinstance(items, str) else ITEM_CHARACTERS


def _check_size(size: int) -> None:
    if size > TEXT_CHARACTERS:
        raise TooMuch(f"the template makes more than {TEXT_CHARACTERS} characters")


def _check_numbers(values: list[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > WIDTH for value in values):
        raise TooMuch(f"the template pads to more than {WIDTH} characters")


def _check_format(text: str, values: Any) -> None:
    if WIDE.search(text):
        raise TooMuch(f"the template pads to more than {WIDTH} characters")
    _check_size((text.count("%") + text.count("{")) * _written(values))


def _written(value: Any) -> int:
    budget = current()
    return budget.weight(value) if budget is not None else 0
