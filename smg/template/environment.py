"""The Jinja environment of chat templates, as transformers sets it up (`utils/chat_template_utils.py`, _compile_jinja_template), but
bounded.

In: the text of a template. Out: a `CompiledTemplate`, which renders variables to text or raises TemplateRefused. Used by `render.py`.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.filters import do_replace
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context, pass_eval_context

from smg.errors import ConfigError, TemplateRefused
from smg.template import guard
from smg.tokenizer.files import TEMPLATE_BYTES

__all__ = ["STEPS_FILTER", "CompiledTemplate", "compile_template"]

STEPS_FILTER = "%steps"  # no template can write this name


class Refusal(TemplateError):
    """The template's own raise_exception."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; for a prompt it only renders its body."""

    tags = {"generation"}  # noqa: RUF012  # the attribute that Jinja reads

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Callable[[], str]) -> str:
        """Renders what the tag encloses."""
        return caller()


class BoundedCodeGenerator(CodeGenerator):
    """Sends `~` through the environment, so that the size of the result is looked at."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that counts steps and refuses huge results."""

    code_generator_class = BoundedCodeGenerator
    concat = staticmethod(guard.bounded_concat)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def joined(self, parts: tuple[Any, ...]) -> str:
        """What `~` means: the texts of all parts, joined."""
        return guard.bounded_concat(str(part) for part in parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        guard.check_operator(operator, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        guard.spend()
        guard.check_call(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, STEPS_FILTER, [], [], None, None, lineno=loop.lineno)
        return tree


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """As transformers has it: no HTML escapes, keys in their own order, other scripts as they are."""
    if isinstance(indent, int) and indent > guard.WIDTH:
        raise guard.TooMuch("the template indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def _replace(context: nodes.EvalContext, value: str, old: str, new: str, count: int | None = None) -> str:
    guard.check_replace(str(value), str(old), str(new))
    return do_replace(context, value, old, new, count)


@pass_context
def _steps(context: Context, items: Any) -> Any:
    """Takes the context only so that the optimizer does not run it at compile time."""
    return guard.steps(items)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols])
    environment.filters.update(guard.bounded_filters(environment.filters))
    environment.filters.update({"tojson": _tojson, "replace": _replace, STEPS_FILTER: _steps})
    # Beyond transformers: templates of other runtimes parse the arguments of past tool calls with these (known-bugs B74).
    environment.filters.update({"fromjson": json.loads, "from_json": json.loads})
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment


ENVIRONMENT = _environment()


class CompiledTemplate:
    """One template text, compiled. Thread-safe. `names`: the variables that it reads from outside."""

    def __init__(self, source: str, template: jinja2.Template, tree: nodes.Template) -> None:
        self.source = source
        self.tree = tree
        self.names = frozenset(find_undeclared_variables(tree))
        self._template = template

    def render(self, variables: dict[str, Any], *, now: datetime | None = None, seconds: float = guard.RENDER_SECONDS) -> str:
        """Gives the prompt. TemplateRefused with the template's own words when it raises, is broken, or spends more than it may."""

        def strftime_now(form: str) -> str:
            return (now or datetime.now()).strftime(form)

        with guard.Budget(seconds):
            try:
                return self._template.render({"strftime_now": strftime_now, **variables})
            except Refusal as error:
                raise TemplateRefused(str(error), param="messages") from error
            except Exception as error:  # a template can raise whatever Python can
                raise TemplateRefused(f"the chat template cannot render these messages: {error}", param="messages") from error


def compile_template(source: str) -> CompiledTemplate:
    """Compiles a template; ConfigError when it is no valid Jinja or too long."""
    if len(source) > TEMPLATE_BYTES:
        raise ConfigError([f"the chat template is longer than {TEMPLATE_BYTES} characters"])
    try:
        return CompiledTemplate(source, ENVIRONMENT.from_string(source), ENVIRONMENT.parse(source))
    except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise ConfigError([f"the chat template is not valid: {error}"]) from error
