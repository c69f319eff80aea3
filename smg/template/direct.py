"""The code generator of chat templates: direct Python for what conversations are made of.

In: nodes from Jinja's parser. Out: the source of a module whose `root(context)` renders. Used by `environment.py`.
Messages and tools are exact `dict`, `list` and `str` objects: an item of one, a sum of texts or a method is written out behind a test of
the exact type. Whatever fails the test takes the sandbox's way with the same operands, so that a subclass, an Undefined or a host object
never meets direct code. Where the sandbox's way has to start over, the operands are pure: to compute them twice changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from keyword import iskeyword

from jinja2 import nodes
from jinja2.compiler import Frame, optimizeconst

from smg.template.compiler import BoundedCodeGenerator
from smg.template.guard import LARGE
from smg.template.loops import loop_uses
from smg.template.shapes import DICT_ATTRIBUTES, compared_to_texts, flat, item_name, operands_of, way_of

__all__ = ["DirectCodeGenerator"]

DICT_METHODS = {"items": (0,), "keys": (0,), "values": (0,), "get": (1, 2)}
# Methods that give no more text than they get.
TEXT_METHODS = frozenset({"startswith", "endswith", "strip", "lstrip", "rstrip", "split", "lower", "upper", "find"})
# Code of Jinja's tests and filters: `{0}` the value where it is first read, `{2}` the value from then on, `{1}` Jinja's own function.
TESTS = {
    "none": "(({0}) is None)",
    "true": "(({0}) is True)",
    "false": "(({0}) is False)",
    "string": "isinstance(({0}), str)",
    "mapping": "(type({0}) is dict or {1}({2}))",
    "boolean": "(type({0}) is bool)",
    "iterable": "(type({0}) in ITEMS or {1}({2}))",
    "sequence": "(type({0}) in ITEMS or {1}({2}))",
}
FILTERS = {
    "trim": f"({{2}}.strip() if type({{0}}) is str and len({{2}}) < {LARGE} else {{1}}({{2}}))",
    "length": "(len({2}) if type({0}) in ITEMS else {1}({2}))",
    "string": "({2} if type({0}) is str else {1}({2}))",
}


class DirectCodeGenerator(BoundedCodeGenerator):
    """Writes direct code where it gives what the sandbox gives."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._careful = False
        self._loops: dict[str, tuple[str, str, str]] = {}

    @contextmanager
    def _sandbox(self) -> Iterator[None]:
        """Inside, the sandbox's way is written for everything."""
        before, self._careful = self._careful, True
        yield
        self._careful = before

    def _code(self, node: nodes.Node, frame: Frame) -> str:
        """The code of an expression, as text."""
        # Expressions are written in one line, so the stream needs no more than to be exchanged.
        stream, lines = self.stream, self._new_lines
        self.stream, self._new_lines = type(stream)(), 0
        self.visit(node, frame)
        text: str = self.stream.getvalue()  # type: ignore[attr-defined]  # a StringIO
        self.stream, self._new_lines = stream, lines
        return text

    def _held(self, node: nodes.Node, frame: Frame) -> tuple[str, str]:
        """A name for an expression's value, and the code that gives it the value where it is first read."""
        code = self._code(node, frame)
        if code.isidentifier() and not iskeyword(code):
            return code, code
        name = self.temporary_identifier()
        return name, f"{name} := {code}"

    # Items and attributes

    @optimizeconst
    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        place = self._place(node, frame)
        if place:
            self.write(place)
        elif self._careful or node.attr in DICT_ATTRIBUTES:
            self.write(f"environment.getattr({self._code(node.node, frame)}, {node.attr!r})")
        else:
            self._item(node, frame)

    @optimizeconst
    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if item_name(node) is not None and not self._careful:
            self._item(node, frame)
        elif isinstance(node.arg, nodes.Const) and type(node.arg.value) is int and node.arg.value in (0, -1) and not self._careful:
            (name, held), number = self._held(node.node, frame), node.arg.value
            self.write(f"({name}[{number}] if type({held}) is list and {name} else environment.getitem({name}, {number}))")
        else:
            super().visit_Getitem.__wrapped__(self, node, frame)  # type: ignore[attr-defined]  # already optimized

    def _item(self, node: nodes.Getattr | nodes.Getitem, frame: Frame) -> None:
        (name, held), key, way = self._held(node.node, frame), item_name(node), way_of(node)
        self.write(f"({name}[{key!r}] if type({held}) is dict and {key!r} in {name} else environment.{way}({name}, {key!r}))")

    def _maybe_item(self, node: nodes.Getattr | nodes.Getitem, frame: Frame) -> None:
        """As `_item`, but None for what is not there."""
        (name, held), key, way = self._held(node.node, frame), item_name(node), way_of(node)
        self.write(f"({name}.get({key!r}) if type({held}) is dict else environment.{way}({name}, {key!r}))")

    def _place(self, node: nodes.Getattr, frame: Frame) -> str:
        """The code of an attribute of a loop that has no object; empty for anything else."""
        if not isinstance(node.node, nodes.Name) or node.node.name != "loop":
            return ""
        index, unknown, count = self._loops.get(frame.symbols.find_ref("loop") or "", ("", "", ""))
        match node.attr if index else "":
            case "first":
                return f"({index} == 0)"
            case "index0":
                return index
            case "index":
                return f"({index} + 1)"
            case "last":
                return f"({index} + 1 == {count} if {unknown} is None else {unknown}.last)"
            case "length":
                return f"({count} if {unknown} is None else {unknown}.length)"
        return ""

    def write_loop(self, node: nodes.For, frame: Frame, *, items: str, loop_ref: str, empty: str) -> None:
        uses = loop_uses(node)
        if not uses:
            super().write_loop(node, frame, items=items, loop_ref=loop_ref, empty=empty)
            return
        index, unknown, count = (self.temporary_identifier() for _ in range(3))
        before = self._loops.get(loop_ref)
        self._loops[loop_ref] = (index, unknown, count)
        self.writeline(f"{unknown}, {count} = ahead({items}, undefined)" if uses & {"last", "length"} else f"{unknown} = None")
        self.writeline(f"for {index}, ", node)
        self.visit(node.target, frame)
        self.write(f" in enumerate({items} if {unknown} is None else {unknown}):")
        self.write_body(node, frame, empty=empty)
        del self._loops[loop_ref]
        if before is not None:
            self._loops[loop_ref] = before

    # Conditions

    def visit_If(self, node: nodes.If, frame: Frame) -> None:
        inner = frame.soft()
        for word, branch in (("if ", node), *(("elif ", other) for other in node.elif_)):
            self.writeline(word, branch)
            self._truth(branch.test, inner)  # type: ignore[arg-type]  # an expression, as in every parsed template
            self.write(":")
            self.indent()
            self.blockvisit(branch.body, inner)
            self.outdent()
        if node.else_:
            self.writeline("else:")
            self.indent()
            self.blockvisit(node.else_, inner)
            self.outdent()

    @optimizeconst
    def visit_CondExpr(self, node: nodes.CondExpr, frame: Frame) -> None:
        inner = frame.soft()
        self.write("(")
        self.visit(node.expr1, inner)
        self.write(" if ")
        self._truth(node.test, inner)
        self.write(" else ")
        if node.expr2 is not None:
            self.visit(node.expr2, inner)
        else:
            place = self.position(node)
            self.write(f'cond_expr_undefined("the inline if-expression on {place} evaluated to false and no else section was defined.")')
        self.write(")")

    @optimizeconst
    def visit_Not(self, node: nodes.UnaryExpr, frame: Frame) -> None:
        self.write("(not ")
        self._truth(node.node, frame)
        self.write(")")

    @optimizeconst
    def _truth(self, node: nodes.Expr, frame: Frame) -> None:
        """Writes an expression of which only the truth counts: nothing need be made for what is not there."""
        match node:
            case nodes.And() | nodes.Or():
                self.write("(")
                self._truth(node.left, frame)
                self.write(" and " if isinstance(node, nodes.And) else " or ")
                self._truth(node.right, frame)
                self.write(")")
            case nodes.Name(ctx="load"):
                ref = frame.symbols.ref(node.name)
                self.write(f"({ref} is not missing and {ref})")
            case nodes.Getattr() | nodes.Getitem() if self._is_item(node, frame):
                self._maybe_item(node, frame)
            case _:
                self.visit(node, frame)

    @optimizeconst
    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        if isinstance(node.expr, nodes.Getattr | nodes.Getitem) and self._is_item(node.expr, frame) and compared_to_texts(node.ops):
            self._maybe_item(node.expr, frame)  # to a text, None and Undefined are alike
        else:
            self.visit(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def _is_item(self, node: nodes.Getattr | nodes.Getitem, frame: Frame) -> bool:
        if self._careful or item_name(node) is None:
            return False
        return not (isinstance(node, nodes.Getattr) and self._place(node, frame))

    # Tests, filters, methods

    @optimizeconst
    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        plain = not (self._careful or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)
        if plain and node.name in ("defined", "undefined") and self._defined(node, frame):
            return
        if plain and node.name in TESTS:
            name, held = self._held(node.node, frame)
            self.write(TESTS[node.name].format(held, self.tests[node.name], name))
            return
        super().visit_Test.__wrapped__(self, node, frame)  # type: ignore[attr-defined]

    def _defined(self, node: nodes.Test, frame: Frame) -> bool:
        """Writes `is defined` for names and items; False when the value is something else."""
        no = "" if node.name == "defined" else "not "
        if isinstance(node.node, nodes.Name):
            ref = frame.symbols.ref(node.node.name)
            self.write(f"({no}({ref} is not missing and not isinstance({ref}, Undefined)))")
            return True
        if not isinstance(node.node, nodes.Getattr | nodes.Getitem) or not self._is_item(node.node, frame):
            return False
        (name, held), key, way = self._held(node.node.node, frame), item_name(node.node), way_of(node.node)
        there = f"({key!r} in {name} and not isinstance({name}[{key!r}], Undefined))"
        otherwise = f"(not isinstance(environment.{way}({name}, {key!r}), Undefined))"
        self.write(f"({no}({there} if type({held}) is dict else {otherwise}))")
        return True

    @optimizeconst
    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        bare = not (self._careful or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs or node.node is None)
        if bare and node.name in FILTERS:
            name, held = self._held(node.node, frame)  # type: ignore[arg-type]  # not None
            self.write(FILTERS[node.name].format(held, self.filters[node.name], name))
        else:
            super().visit_Filter.__wrapped__(self, node, frame)  # type: ignore[attr-defined]

    @optimizeconst
    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        method, bare = node.node, not (node.kwargs or node.dyn_args or node.dyn_kwargs or forward_caller or self._careful)
        if not bare or not isinstance(method, nodes.Getattr) or not all(isinstance(part, nodes.Const | nodes.Name) for part in node.args):
            super().visit_Call.__wrapped__(self, node, frame, forward_caller)  # type: ignore[attr-defined]
            return
        name, held = self._held(method.node, frame)
        if len(node.args) in DICT_METHODS.get(method.attr, ()):
            test = f"type({held}) is dict"
        elif method.attr in TEXT_METHODS:
            test = f"type({held}) is str and len({name}) < {LARGE}"
        else:
            super().visit_Call.__wrapped__(self, node, frame)  # type: ignore[attr-defined]
            return
        arguments = ", ".join(self._code(part, frame) for part in node.args)
        block = ", _loop_vars=_loop_vars" * bool(frame.loop_frame) + ", _block_vars=_block_vars" * bool(frame.block_frame)
        careful = f"environment.call(context, environment.getattr({name}, {method.attr!r}){', ' * bool(arguments)}{arguments}{block})"
        self.write(f"({name}.{method.attr}({arguments}) if {test} else {careful})")

    # Texts

    @optimizeconst
    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        if self._careful:
            super().visit_Add.__wrapped__(self, node, frame)  # type: ignore[attr-defined]
            return
        (left, one), (right, other) = self._held(node.left, frame), self._held(node.right, frame)
        texts = f"type({one}) is type({other}) is str and len({left}) + len({right}) < {LARGE}"
        self.write(f"({left} + {right} if {texts} else plus({left}, {right}))")

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        if self._careful or frame.buffer is None or frame.eval_ctx.volatile or frame.eval_ctx.autoescape or frame.require_output_check:
            super().visit_Output(node, frame)
            return
        pieces: list[str] = []
        constant: list[str] = []
        finalize = self._make_finalize()
        for child in flat(node.nodes):
            try:
                constant.append(self._output_child_to_const(child, frame, finalize))
            except Exception:  # as Jinja: whatever it is, it is told when the template runs
                pass
            else:
                continue
            operands = operands_of(child)
            if operands is None:
                self._put(pieces, constant)
                pieces.append(f"str({self._code(child, frame)})")
            else:
                self._put_sum(child, operands, frame, pieces, constant)
        self._put(pieces, constant)
        self._flush(pieces, frame, node)

    def _put(self, pieces: list[str], constant: list[str]) -> None:
        if constant:
            pieces.append(repr("".join(constant)))
            constant.clear()

    def _flush(self, pieces: list[str], frame: Frame, node: nodes.Node) -> None:
        if len(pieces) == 1:
            self.writeline(f"{frame.buffer}.append({pieces[0]})", node)
        elif pieces:
            self.writeline(f"{frame.buffer}.extend(({', '.join(pieces)}))", node)
        pieces.clear()

    def _put_sum(self, node: nodes.Expr, operands: list[nodes.Expr], frame: Frame, pieces: list[str], constant: list[str]) -> None:
        """Writes the operands of a sum of texts one by one; when one is no text, the sum as the sandbox does it."""
        tests: list[str] = []
        own: list[str] = []
        before, constant[:] = constant[:], []
        for operand in operands:
            if isinstance(operand, nodes.Const):
                constant.append(operand.value)
                continue
            self._put(own, constant)
            name, held = self._held(operand, frame)
            own.append(name)
            tests.append(f"type({held}) is str")
        self._put(own, constant)
        constant[:] = before
        self._put(pieces, constant)
        self._flush(pieces, frame, node)
        self.writeline(f"if {' and '.join(tests)}:")
        self.indent()
        self._flush(own, frame, node)
        self.outdent()
        self.writeline("else:")
        self.indent()
        with self._sandbox():
            self._flush([f"str({self._code(node, frame)})"], frame, node)
        self.outdent()
