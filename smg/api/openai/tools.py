"""`tools` and `tool_choice`: checked, and narrowed to what the choice allows. Called by chat.py and tokenize.py."""

from typing import cast

from smg.api.decode import convert
from smg.errors import InvalidValue, Unimplemented
from smg.types.json import JsonObject
from smg.types.openai.chat import FunctionSpec, NamedFunction, Tool, ToolChoice

__all__ = ["MODES", "checked_tools", "chosen_tools", "legacy_tools"]

MAX_TOOLS = 1024
MODES = ("none", "auto", "required")


def checked_tools(tools: list[dict[str, object]] | None) -> dict[str, JsonObject]:
    """Gives the client's tool objects by name, in their order. Raises InvalidValue; Unimplemented for custom tools."""
    by_name: dict[str, JsonObject] = {}
    if len(tools or ()) > MAX_TOOLS:
        raise InvalidValue(f"tools may have at most {MAX_TOOLS} entries", param="tools")
    for i, raw in enumerate(tools or ()):
        at = f"tools[{i}]"
        tool = convert(raw, Tool, at=at)
        if tool.type != "function":
            if tool.type == "custom":
                raise Unimplemented(f"{at}: custom tools are not supported", param=at)
            raise InvalidValue(f"{at}.type must be function", param=f"{at}.type")
        if tool.function is None:
            raise InvalidValue(f"{at}.function is required", param=f"{at}.function")
        name = tool.function.name
        if not name or name in by_name:
            raise InvalidValue(f"{at}.function.name is {'empty' if not name else 'used twice'}", param=f"{at}.function.name")
        by_name[name] = cast(JsonObject, raw)
    return by_name


def chosen_tools(tools: dict[str, JsonObject], choice: str | ToolChoice | None) -> tuple[tuple[JsonObject, ...], str]:
    """Gives the tools the model may call and the neutral choice: none, auto, required or a tool's name.

    A named choice keeps all tools in the prompt; allowed_tools hides the others, as a model cannot tell allowed from shown.
    """
    everything = tuple(tools.values())
    if choice is None:
        return everything, "auto"
    if isinstance(choice, str):
        if choice not in MODES:
            raise InvalidValue(f"tool_choice must be one of {', '.join(MODES)} or an object", param="tool_choice")
        if choice == "required" and not tools:
            raise InvalidValue("tool_choice is required, but there are no tools", param="tool_choice")
        return everything, choice
    if choice.type == "function":
        return everything, _named(choice, tools, at="tool_choice")
    if choice.type == "custom":
        raise Unimplemented("tool_choice: custom tools are not supported", param="tool_choice")
    if choice.type != "allowed_tools" or choice.allowed_tools is None:
        raise InvalidValue("tool_choice.type must be function or allowed_tools", param="tool_choice.type")
    return _allowed(choice.allowed_tools.mode, choice.allowed_tools.tools, tools)


def legacy_tools(functions: list[dict[str, object]] | None, call: str | NamedFunction | None) -> tuple[tuple[JsonObject, ...], str]:
    """Gives the deprecated `functions` and `function_call` as tools and a neutral choice."""
    wrapped: list[dict[str, object]] = []
    for i, function in enumerate(functions or ()):
        convert(function, FunctionSpec, at=f"functions[{i}]")
        wrapped.append({"type": "function", "function": function})
    tools = checked_tools(wrapped)
    if isinstance(call, NamedFunction):
        if call.name not in tools or call.name in MODES:
            raise InvalidValue(
                f"function_call names the function {call.name[:80]!r}, which is not in functions", param="function_call.name"
            )
        return tuple(tools.values()), call.name
    if call not in (None, "none", "auto"):
        raise InvalidValue("function_call must be none, auto or an object", param="function_call")
    return tuple(tools.values()), call or "auto"


def _allowed(mode: str, choices: list[ToolChoice], tools: dict[str, JsonObject]) -> tuple[tuple[JsonObject, ...], str]:
    at = "tool_choice.allowed_tools"
    if mode not in ("auto", "required"):
        raise InvalidValue(f"{at}.mode must be auto or required", param=f"{at}.mode")
    names = [_named(choice, tools, at=f"{at}.tools[{i}]") for i, choice in enumerate(choices)]
    if not names:
        raise InvalidValue(f"{at}.tools must not be empty", param=f"{at}.tools")
    return tuple(tool for name, tool in tools.items() if name in names), mode


def _named(choice: ToolChoice, tools: dict[str, JsonObject], *, at: str) -> str:
    if choice.function is None:
        raise InvalidValue(f"{at}.function is required", param=f"{at}.function")
    name = choice.function.name
    if name in MODES:
        raise InvalidValue(f"{at} names a function {name!r}, a name that cannot be chosen", param=f"{at}.function.name")
    if name not in tools:
        raise InvalidValue(f"{at} names the function {name[:80]!r}, which is not in tools", param=f"{at}.function.name")
    return name
