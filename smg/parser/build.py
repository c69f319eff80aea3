"""Makes a parser from the names of a reasoning and a tool family, and says which marks it must see. Called by `smg.pipeline`."""

import re
from collections.abc import Callable, Iterable

from smg._ext import NO_EXT
from smg.parser.base import Parser
from smg.parser.functionary import FUNCTIONARY_MARKS, Functionary
from smg.parser.harmony import HARMONY_MARKS, Harmony
from smg.parser.inkling import INKLING_MARKS, Inkling
from smg.parser.machine import Machine
from smg.parser.muse import MUSE_MARKS, Muse
from smg.parser.native import native_parser
from smg.parser.one_call import OneCall
from smg.parser.reasoning.spec import REASONING, ReasoningSpec
from smg.parser.tool.grammar.bare_arguments import bare_arguments
from smg.parser.tool.spec import TOOLS, ToolSpec
from smg.types.json import JsonObject

__all__ = ["build", "marks", "schemas_of", "wrote_thoughts"]

# A mark may be several special tokens with plain text between them, such as <|open|>think<|sep|>.
TOKEN = re.compile(r"<[^<>]+>|\[[A-Z/_]+\]")
NONE = ("", "none", "passthrough")
# Families whose whole output has a format of its own: its parser and its marks.
CHANNELS: dict[str, tuple[Callable[..., Parser], tuple[str, ...]]] = {
    "harmony": (Harmony, HARMONY_MARKS),
    "inkling": (Inkling, INKLING_MARKS),
    "functionary": (Functionary, FUNCTIONARY_MARKS),
    "muse": (Muse, MUSE_MARKS),
}


class EveryName(dict[str, JsonObject]):
    """Schemas of tools where any name may be one: who asks gave an output, and not the tools it was made with."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def build(
    *,
    reasoning: str | None,
    tool: str | None,
    tools: Iterable[JsonObject] = (),
    in_think: bool = False,
    named: str | None = None,
    any_tool: bool = False,
    parallel: bool = True,
    native: bool = not NO_EXT,
) -> Parser | None:
    """Gives a new parser, or None when the output is plain text: no reasoning family, and no tool family or no tools.

    `in_think`: the prompt opened the thinking block. `named`: after thinking the output is the bare arguments of that tool. `any_tool`:
    names that are not in `tools` are tools too. `parallel` False: the answer ends where a second call begins. Not `native`: the parser
    that is the native one's specification. Raises KeyError for a name that is not registered.
    """
    schemas = schemas_of(tools)
    if any_tool:
        schemas = EveryName(schemas)
    think = _reasoning(reasoning)
    calls = _tool(tool)
    if native and (think is not None or named or (calls is not None and schemas)):
        calls = calls if named or schemas else None
        return native_parser(think, calls, schemas=schemas, in_think=in_think, named=named, parallel=parallel)
    if named:
        calls = ToolSpec(reader=bare_arguments(named), bare="{", new_id=calls.new_id if calls else None)
    elif not schemas:
        calls = None
    if think is None and calls is None:
        return None
    parser = _parser(think, calls, schemas, in_think)
    return parser if parallel or calls is None else OneCall(parser)


def _parser(think: ReasoningSpec | None, calls: ToolSpec | None, schemas: dict[str, JsonObject], in_think: bool) -> Parser:
    channels = (think.channels if think else "") or (calls.channels if calls else "")
    if channels:
        make, _ = CHANNELS[channels]
        return make(schemas=schemas, thoughts=think is not None, calls=calls is not None, in_think=in_think)
    return Machine(reasoning=think, tool=calls, schemas=schemas, in_think=in_think)


def marks(reasoning: str | None, tool: str | None) -> tuple[str, ...]:
    """Gives the marks that the two families look for: where one is a special token, the decoder must let it through."""
    think, calls = _reasoning(reasoning), _tool(tool)
    found: list[str] = []
    for spec in (think, calls):
        if spec is not None and spec.channels:
            found += CHANNELS[spec.channels][1]
    if think is not None:
        found += [*think.starts, *think.ends, *think.also_ends, *think.layout]
    if calls is not None:
        found += [*calls.opens, *calls.strays, *calls.inner]
    tokens = [token for mark in found for token in TOKEN.findall(mark)]
    return tuple(dict.fromkeys([*found, *tokens]))


def wrote_thoughts(output: str, reasoning: str | None) -> bool:
    """True when a whole output can only have begun inside a thinking block: it closes one before it opens any."""
    spec = _reasoning(reasoning)
    if spec is None or spec.channels:
        return False
    ends = [at for mark in spec.ends if (at := output.find(mark)) >= 0]
    starts = [at for mark in spec.starts if (at := output.find(mark)) >= 0]
    return bool(ends) and (not starts or min(ends) < min(starts))


def schemas_of(tools: Iterable[JsonObject]) -> dict[str, JsonObject]:
    """Gives the parameter schema of each tool by name; `tools` in OpenAI's form, with or without the `function` envelope."""
    schemas: dict[str, JsonObject] = {}
    for tool in tools:
        inner = tool.get("function")
        function = inner if isinstance(inner, dict) else tool
        name = function.get("name")
        parameters = function.get("parameters", function.get("input_schema"))
        if isinstance(name, str) and name:
            schemas[name] = parameters if isinstance(parameters, dict) else {}
    return schemas


def _reasoning(name: str | None) -> ReasoningSpec | None:
    return None if name is None or name in NONE else REASONING.get(name)


def _tool(name: str | None) -> ToolSpec | None:
    return None if name is None or name in NONE else TOOLS.get(name)
