"""The Jinja environment of chat templates, as transformers sets it up (`utils/chat_template_utils.py`, _compile_jinja_template), but
bounded.

In: the text of a template. Out: a `CompiledTemplate`, which renders variables to text or raises TemplateRefused. Used by `render.py`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # the first is None where there is no C
from types import CodeType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.filters import do_groupby, do_join, do_replace
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_environment, pass_eval_context

from smg.errors import ConfigError, TemplateRefused
from smg.template import guard
from smg.template.compiler import BoundedCodeGenerator
from smg.template.direct import DirectCodeGenerator
from smg.template.loops import SIMPLE_USES, CountedLoop
from smg.template.runtime import RUNTIME, RenderContext, Variables
from smg.template.shapes import DICT_ATTRIBUTES
from smg.tokenizer.files import TEMPLATE_BYTES

__all__ = ["CompiledTemplate", "compile_template"]

# Filters whose cost does not grow with what they get.
QUICK_FILTERS = frozenset({"length", "count", "default", "d", "first", "last", "abs", "float", "round", "safe", "attr", "map", "select"})
# Values that need no look at how they may be used.
VALUES = frozenset({str, bool, int, float, list, dict, tuple})
LOOP_ATTRIBUTES = SIMPLE_USES | {"previtem", "nextitem", "revindex", "revindex0", "depth", "depth0"}


# What `json.dumps(value, ensure_ascii=False)` makes anew for each value, made once.
ENCODER = json.JSONEncoder(ensure_ascii=False)
ENCODE = c_make_encoder and c_make_encoder(None, ENCODER.default, encode_basestring, None, ": ", ", ", False, False, True)


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


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that counts steps and refuses huge results."""

    code_generator_class: type[BoundedCodeGenerator] = DirectCodeGenerator
    concat = staticmethod(guard.bounded_concat)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox, which asks the object first; for what is common without an exception."""
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_ATTRIBUTES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is Namespace and attribute[:1] != "_":
            value = object.__getattribute__(obj, "_Namespace__attrs").get(attribute)
            if type(value) in VALUES:
                return value
        elif kind is CountedLoop and attribute in LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        guard.check_operator(operator, left, right)
        result = self.binop_table[operator](left, right)
        if operator == "+":
            return guard.weighed_sum(left, right, result)
        return guard.weighed(result) if isinstance(result, list | tuple) else guard.looked_at(result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        guard.spend()
        kind = type(__obj)
        if kind is Macro or __obj is Namespace:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*args, **kwargs) if __obj is Namespace else __obj(__context.eval_ctx, *args, **kwargs)
        guard.check_call(__obj, args, kwargs)
        if __obj is dict:
            return guard.weighed(super().call(__context, __obj, *args, **kwargs))
        return guard.looked_at(super().call(__context, __obj, *args, **kwargs))


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """As transformers has it: no HTML escapes, keys in their own order, other scripts as they are."""
    if indent is None and separators is None and ensure_ascii is False and sort_keys is False:
        return "".join(ENCODE(value, 0)) if ENCODE else ENCODER.encode(value)
    if isinstance(indent, int) and indent > guard.WIDTH:
        raise guard.TooMuch("the template indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def _replace(context: nodes.EvalContext, value: str, old: str, new: str, count: int | None = None) -> str:
    guard.check_replace(str(value), str(old), str(new))
    return do_replace(context, value, old, new, count)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
    parts = list(value)
    guard.check_join(parts, str(d))
    return do_join(context, parts, d, attribute)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols])
    environment.filters.update(guard.bounded_filters(environment.filters))
    environment.filters["join"] = _join
    for name in environment.filters.keys() - QUICK_FILTERS:
        environment.filters[name] = guard.charged(environment.filters[name])
    environment.filters["groupby"] = pass_environment(lambda *args, **kwargs: guard.weighed(do_groupby(*args, **kwargs)))
    environment.filters.update({"tojson": _tojson, "replace": guard.charged(_replace)})
    # Beyond transformers: templates of other runtimes parse the arguments of past tool calls with these (known-bugs B74).
    environment.filters.update({"fromjson": json.loads, "from_json": json.loads})
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment


ENVIRONMENT = _environment()
PLAIN_ENVIRONMENT = ENVIRONMENT.overlay()
PLAIN_ENVIRONMENT.code_generator_class = BoundedCodeGenerator


class CompiledTemplate:
    """One template text, compiled. Thread-safe. `names`: the variables that it reads from outside."""

    def __init__(self, source: str, tree: nodes.Template) -> None:
        self.source = source
        self.tree = tree
        self.names = frozenset(find_undeclared_variables(tree))
        namespace: dict[str, Any] = {"environment": ENVIRONMENT, **RUNTIME}
        exec(_compiled(source), namespace)  # what Jinja's own `from_code` does
        self._root = namespace["root"]
        self._blocks = namespace["blocks"]

    def render(
        self,
        variables: Mapping[str, Any],
        *,
        now: datetime | None = None,
        seconds: float = guard.RENDER_SECONDS,
        budget: guard.Budget | None = None,
    ) -> str:
        """Gives the prompt. TemplateRefused with the template's own words when it raises, is broken, or spends more than it may.

        A budget that the thread has entered is used, which who has it may give; else there is one of `seconds` for this render.
        """
        known = Variables(ENVIRONMENT.globals)
        if "strftime_now" in self.names:
            known["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
        known.update(variables)
        if budget is None:
            budget = guard.current()
        if budget is not None:
            return self._rendered(known, budget)
        with guard.Budget(seconds) as budget:
            return self._rendered(known, budget)

    def _rendered(self, variables: Variables, budget: guard.Budget) -> str:
        context = RenderContext(ENVIRONMENT, variables, budget, blocks=self._blocks)
        try:
            text = self._root(context)
            return text if type(text) is str else guard.bounded_concat(text)
        except Refusal as error:
            raise TemplateRefused(str(error), param="messages") from error
        except Exception as error:  # a template can raise whatever Python can
            raise TemplateRefused(f"the chat template cannot render these messages: {error}", param="messages") from error


def _compiled(source: str) -> CodeType:
    try:
        return ENVIRONMENT.compile(source)
    except (RecursionError, SyntaxError, MemoryError):
        # Direct code is nested deeper than the sandbox's own.
        return PLAIN_ENVIRONMENT.compile(source)


def compile_template(source: str) -> CompiledTemplate:
    """Compiles a template; ConfigError when it is no valid Jinja or too long."""
    if len(source) > TEMPLATE_BYTES:
        raise ConfigError([f"the chat template is longer than {TEMPLATE_BYTES} characters"])
    try:
        return CompiledTemplate(source, ENVIRONMENT.parse(source))
    except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise ConfigError([f"the chat template is not valid: {error}"]) from error
