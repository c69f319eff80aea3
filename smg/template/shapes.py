"""Questions about nodes of a template's syntax tree. Asked by `direct.py`, which writes code for what is found."""

from collections.abc import Iterator

from jinja2 import nodes

__all__ = ["DICT_ATTRIBUTES", "compared_to_texts", "flat", "item_name", "operands_of", "way_of"]

DICT_ATTRIBUTES = frozenset(dir(dict))
PURE = (
    *(nodes.Const, nodes.TemplateData, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Or, nodes.And, nodes.Not),
    *(nodes.Compare, nodes.Operand, nodes.CondExpr, nodes.Test, nodes.Filter, nodes.Add, nodes.Concat, nodes.Keyword),
    *(nodes.List, nodes.Tuple),
)


def item_name(node: nodes.Getattr | nodes.Getitem) -> str | None:
    """The name of the item; None when it is no constant text, or the name of something that every dict has."""
    key = node.attr if isinstance(node, nodes.Getattr) else node.arg.value if isinstance(node.arg, nodes.Const) else None
    return key if type(key) is str and key not in DICT_ATTRIBUTES else None


def way_of(node: nodes.Getattr | nodes.Getitem) -> str:
    """Gives the name of the environment's method for such a node."""
    return "getattr" if isinstance(node, nodes.Getattr) else "getitem"


def compared_to_texts(operands: list[nodes.Operand]) -> bool:
    """True for `== 'text'`, `in ['text', …]` and their opposites."""
    if len(operands) != 1:
        return False
    value = operands[0].expr
    if operands[0].op in ("eq", "ne"):
        return isinstance(value, nodes.Const) and type(value.value) is str
    if operands[0].op not in ("in", "notin") or not isinstance(value, nodes.Const) or not isinstance(value.value, list | tuple):
        return False
    return all(type(item) is str for item in value.value)


def flat(parts: list[nodes.Expr]) -> Iterator[nodes.Expr]:
    """What an output writes, with the parts of `~` one by one."""
    for part in parts:
        if isinstance(part, nodes.Concat):
            yield from flat(part.nodes)
        else:
            yield part


def operands_of(node: nodes.Expr) -> list[nodes.Expr] | None:
    """The operands of a sum in which texts occur and nothing has an effect; None for anything else."""
    if not isinstance(node, nodes.Add):
        return None
    pending, operands = [node.right, node.left], []
    while pending:
        part = pending.pop()
        if isinstance(part, nodes.Add):
            pending += (part.right, part.left)
        else:
            operands.append(part)
    texts = [isinstance(part, nodes.Const) and type(part.value) is str for part in operands]
    if all(texts) or any(isinstance(part, nodes.Const) and not text for part, text in zip(operands, texts, strict=True)):
        return None
    pure = all(isinstance(part, PURE) and not (isinstance(part, nodes.Filter) and part.name == "random") for part in _every(node))
    return operands if pure else None


def _every(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    yield from node.find_all(nodes.Node)
