"""What a loop's body does with the variable `loop`, and that variable as templates see it. Used by the code generators and their code."""

from typing import Any

from jinja2 import nodes
from jinja2.runtime import LoopContext

from smg.template.guard import Steps, spend

__all__ = ["COUNTED", "SIMPLE_USES", "Ahead", "CountedLoop", "ahead", "loop_uses"]

# Attributes of `loop` that follow from the item's number and the number of items.
SIMPLE_USES = frozenset({"first", "last", "index", "index0", "length"})

# Types of which the length is the number of items.
COUNTED = frozenset({list, tuple, dict, str, range, type({}.items()), type({}.keys()), type({}.values())})


def loop_uses(loop: nodes.For) -> frozenset[str] | None:
    """Gives the attributes of `loop` that the body reads, all of them SIMPLE_USES; None when it does anything else with the variable."""
    uses: set[str] = set()
    return frozenset(uses) if all(_simple(node, uses) for node in loop.body) else None


def _simple(node: nodes.Node, uses: set[str]) -> bool:
    match node:
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=name) if name in SIMPLE_USES:
            uses.add(name)
            return True
        case nodes.Name():
            return node.name != "loop"
        case nodes.For():  # its body has a `loop` of its own
            return all(_simple(part, uses) for part in (node.iter, node.test, *node.else_) if part is not None)
        case nodes.Macro() | nodes.CallBlock():  # may run when the loop is over
            return all(name.name != "loop" for name in node.find_all(nodes.Name))
    return all(_simple(child, uses) for child in node.iter_child_nodes())


class CountedLoop(LoopContext):
    """Jinja's `loop`, whose items count as steps: recursive loops bring their own."""

    def __next__(self) -> tuple[Any, LoopContext]:
        spend()
        return super().__next__()


class Ahead(LoopContext):
    """Items of no known number, one at a time, with `last` and `length` found as Jinja finds them."""

    def __next__(self) -> Any:  # without the loop beside each item
        return super().__next__()[0]


def ahead(items: Any, undefined: Any) -> tuple[Ahead | None, int]:
    """Gives None and the number of items where that is known for sure, else the items as an `Ahead`."""
    if type(items.items if type(items) is Steps else items) in COUNTED:
        return None, len(items)
    return Ahead(items, undefined), 0
