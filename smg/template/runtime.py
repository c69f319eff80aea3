"""What compiled templates call: the careful way of each operation that the generated code does not write out. Used by `environment.py`."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Undefined
from jinja2.utils import missing

from smg.template import guard
from smg.template.guard import STEPS_PER_LOOK, Budget
from smg.template.loops import COUNTED, CountedLoop, ahead

__all__ = ["RUNTIME", "RenderContext", "Variables"]


class Variables(dict[str, Any]):
    """The variables of a render; those that are not there are Jinja's `missing`."""

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        return missing


class RenderContext(Context):
    """Jinja's context, made for one render of one template without others."""

    def __init__(self, environment: Any, variables: Variables, budget: Budget, *, blocks: Mapping[str, Any]) -> None:
        self.environment = environment
        self.parent = variables
        self.vars = {}
        self.eval_ctx = EvalContext(environment)
        self.exported_vars = set()
        self.name = None
        self.globals_keys = set()
        self.blocks = {name: [block] for name, block in blocks.items()} if blocks else {}
        self.budget = budget


def steps(budget: Budget, items: Iterable[Any]) -> Iterable[Any]:
    """Gives the same items; each counts as one step, at once where they are few."""
    if type(items) in COUNTED and len(items) <= STEPS_PER_LOOK:  # type: ignore[arg-type]  # all of them have a length
        budget.left -= len(items)  # type: ignore[arg-type]
        if budget.left <= 0:
            budget.look()
        return items
    return guard.Steps(items, budget)


def plus(left: Any, right: Any) -> Any:
    """Gives `left + right`, unless that is too much."""
    guard.check_operator("+", left, right)
    return guard.weighed_sum(left, right, left + right)


def joined(parts: Iterable[Any]) -> str:
    """Gives what `~` means: the texts of all parts, joined."""
    text = guard.bounded_concat([str(part) for part in parts])
    guard.looked_at(text)
    return text


# Names that generated code uses besides Jinja's own.
RUNTIME: Mapping[str, Any] = {
    "LoopContext": CountedLoop,
    "ITEMS": frozenset({str, list, dict, tuple}),
    "ahead": ahead,
    "joined": joined,
    "plus": plus,
    "sliced": guard.looked_at,
    "steps": steps,
    "weighed": guard.weighed,
    "Undefined": Undefined,
}
