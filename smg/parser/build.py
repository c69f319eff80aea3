"""Makes a parser from the names of a reasoning and a tool family, and says which marks it must see. Called by `smg.pipeline`."""

from collections.abc import Iterable

from smg.parser.base import Parser
from smg.parser.machine import Machine
from smg.parser.reasoning.spec import REASONING, ReasoningSpec
from smg.parser.tool.spec import TOOLS, ToolSpec
from smg.types.json import JsonObject

__all__ = ["build", "marks", "schemas_of"]

NONE = ("", "none", "passthrough")


def build(*, reasoning: str | None, tool: str | None, tools: Iterable[JsonObject] = (), in_think: bool = False) -> Parser | None:
    """Gives a new parser, or None when the output is plain text: no reasoning family, and no tool family or no tools.

    `in_think`: the prompt opened the thinking block. Raises KeyError for a name that is not registered.
    """
    schemas = schemas_of(tools)
    think = _reasoning(reasoning)
    calls = _tool(tool) if schemas else None
    if think is None and calls is None:
        return None
    return Machine(reasoning=think, tool=calls, schemas=schemas, in_think=in_think)


def marks(reasoning: str | None, tool: str | None) -> tuple[str, ...]:
    """Gives the marks that the two families look for: where one is a special token, the decoder must let it through."""
    think, calls = _reasoning(reasoning), _tool(tool)
    found: list[str] = []
    if think is not None:
        found += [*think.starts, *think.ends, *think.also_ends, *think.layout]
    if calls is not None:
        found += [*calls.opens, *calls.strays]
    return tuple(dict.fromkeys(found))


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
