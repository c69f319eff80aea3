"""Turns a template's syntax tree into Python: Jinja's code generator with counted loops, and a root that gives its text at once.

In: nodes from Jinja's parser. Out: the source of a module whose `root(context)` renders; it calls `runtime.py`. Used by `environment.py`,
for templates that `direct.py`, which is built on it, cannot compile.
"""

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, find_undeclared, optimizeconst
from jinja2.nodes import EvalContext
from jinja2.runtime import exported

from smg.template.loops import loop_uses

__all__ = ["BoundedCodeGenerator"]

# What works on a stream of pieces; such a root stays a generator.
STREAMED = (nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport)


class BoundedCodeGenerator(CodeGenerator):
    """Jinja's own code, but that loops count their items and that texts made outside of operators and filters are looked at."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        if self.optimizer is not None and not any(True for _ in node.find_all((nodes.EvalContextModifier,))):
            # Once for all: Jinja does it anew at each level of an expression, which takes the square of its depth.
            node = self.optimizer.visit(node, EvalContext(self.environment, self.name))
            self.optimizer = None
        if any(True for _ in node.find_all(STREAMED)):
            super().visit_Template(node, frame)
            return
        self.writeline("from jinja2.runtime import " + ", ".join(sorted({*exported} - {"LoopContext"})))
        self.writeline(f"name = {self.name!r}")
        self.writeline("def root(context, missing=missing, environment=environment):", extra=1)
        self.indent()
        # What the root assigns are locals of its function, so that every other name is one of the variables given.
        for line in ("resolve = context.parent.__getitem__", "undefined = environment.undefined", "concat = environment.concat"):
            self.writeline(line)
        self.writeline("cond_expr_undefined = Undefined")
        self.writeline("budget = context.budget")
        frame = Frame(EvalContext(self.environment, self.name))
        self.buffer(frame)
        if "self" in find_undeclared(node.body, ("self",)):
            self.writeline(f"{frame.symbols.declare_parameter('self')} = TemplateReference(context)")
        frame.symbols.analyze_node(node)
        frame.toplevel = frame.rootlevel = True
        self.enter_frame(frame)
        self.pull_dependencies(node.body)
        self.blockvisit(node.body, frame)
        self.writeline(f"return concat({frame.buffer})")
        self.outdent()
        self.writeline("blocks = {}", extra=1)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("budget = context.budget")

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    @optimizeconst
    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        cut = isinstance(node.arg, nodes.Slice)
        self.write("sliced(" if cut else "environment.getitem(")
        self.visit(node.node, frame)
        self.write("[" if cut else ", ")
        self.visit(node.arg, frame)
        self.write("])" if cut else ")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("weighed(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("weighed(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        self.write("weighed(" if node.ctx == "load" else "")
        super().visit_Tuple(node, frame)
        self.write(")" if node.ctx == "load" else "")

    def visit_Name(self, node: nodes.Name, frame: Frame) -> None:
        given = node.ctx == "load" and node.name in ("varargs", "kwargs")  # what a macro's caller gave, as one list
        self.write("weighed(" if given else "")
        super().visit_Name(node, frame)
        self.write(")" if given else "")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.recursive or node.find(nodes.Block) is not None:
            super().visit_For(node, frame)  # with our LoopContext, which counts
            return
        for name in node.find_all(nodes.Name):
            if name.ctx == "store" and name.name == "loop":
                self.fail("Can't assign to special loop variable in for-loop target", name.lineno)
        loop_frame, else_frame = frame.inner(), frame.inner()
        loop_frame.loop_frame = True
        uses = loop_uses(node)
        loop_ref = loop_frame.symbols.declare_parameter("loop") if uses is None or uses else ""
        loop_frame.symbols.analyze_node(node, for_branch="body")
        keep = self._kept(node, frame, loop_frame) if node.test else ""
        items = self.temporary_identifier()
        self.writeline(f"{items} = {keep}(steps(budget, ", node)
        self.visit(node.iter, frame)
        self.write("))")
        empty = self.temporary_identifier() if node.else_ else ""
        if empty:
            else_frame.symbols.analyze_node(node, for_branch="else")
            self.writeline(f"{empty} = 1")
        self.write_loop(node, loop_frame, items=items, loop_ref=loop_ref, empty=empty)
        if empty:
            self.writeline(f"if {empty}:")
            self.indent()
            self.enter_frame(else_frame)
            self.blockvisit(node.else_, else_frame)
            self.leave_frame(else_frame)
            self.outdent()
        if self._assign_stack:
            self._assign_stack[-1].difference_update(loop_frame.symbols.stores)

    def _kept(self, node: nodes.For, frame: Frame, loop_frame: Frame) -> str:
        """Writes the function that applies a loop's `if`."""
        test_frame = frame.inner()
        test_frame.symbols.analyze_node(node, for_branch="test")
        name = self.temporary_identifier()
        self.writeline(f"def {name}(fiter):", node.test)
        self.indent()
        self.enter_frame(test_frame)
        self.writeline("for ")
        self.visit(node.target, loop_frame)
        self.write(" in fiter:")
        self.indent()
        self.writeline("if ", node.test)
        self.visit(node.test, test_frame)  # type: ignore[arg-type]  # only called when there is one
        self.write(":")
        self.indent()
        self.writeline("yield ")
        self.visit(node.target, loop_frame)
        self.outdent(3)
        self.leave_frame(test_frame, with_python_scope=True)
        return name

    def write_loop(self, node: nodes.For, frame: Frame, *, items: str, loop_ref: str, empty: str) -> None:
        """Writes the loop over `items`; `loop_ref` is empty when the body has no use for `loop`."""
        if loop_ref:
            self.writeline(f"{loop_ref} = missing")
        self.writeline("for ", node)
        self.visit(node.target, frame)
        self.write(f", {loop_ref} in LoopContext({items}, undefined):" if loop_ref else f" in {items}:")
        self.write_body(node, frame, empty=empty)

    def write_body(self, node: nodes.For, frame: Frame, *, empty: str) -> None:
        """Writes the body of a loop whose head was written."""
        self.indent()
        self.enter_frame(frame)
        self.writeline("_loop_vars = {}")
        self.blockvisit(node.body, frame)
        if empty:
            self.writeline(f"{empty} = 0")
        self.outdent()
        self.leave_frame(frame)
