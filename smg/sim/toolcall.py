"""Tool calls as model families write them: a name and arguments come in, the text that such a model would generate goes out.

The names are those of the gateway's tool parsers. Called by `output`.
"""

import json
from collections.abc import Callable
from typing import TypeAlias

from smg.types.json import Json, JsonObject

__all__ = ["TOOL_FORMATS", "write_tool_call"]

Writer: TypeAlias = Callable[[str, JsonObject], str]


def write_tool_call(name: str, *, arguments: JsonObject, family: str) -> str:
    """Gives one call in the family's notation. ValueError when the family is not known."""
    writer = TOOL_FORMATS.get(family)
    if writer is None:
        raise ValueError(f"unknown tool format {family!r}; known are {', '.join(TOOL_FORMATS)}")
    return writer(name, arguments)


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Json) -> str:
    """Strings as they are, all else as JSON: how the XML notations write a parameter."""
    return value if isinstance(value, str) else _dump(value)


def _hermes(name: str, arguments: JsonObject) -> str:
    return f'<tool_call>\n{{"name": {_dump(name)}, "arguments": {_dump(arguments)}}}\n</tool_call>'


def _json(name: str, arguments: JsonObject) -> str:
    return f'{{"name": {_dump(name)}, "arguments": {_dump(arguments)}}}'


def _llama(name: str, arguments: JsonObject) -> str:
    return f'<|python_tag|>{{"name": {_dump(name)}, "parameters": {_dump(arguments)}}}'


def _mistral(name: str, arguments: JsonObject) -> str:
    return f"[TOOL_CALLS] [{_json(name, arguments)}]"


def _qwen_xml(name: str, arguments: JsonObject) -> str:
    parameters = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _pythonic(name: str, arguments: JsonObject) -> str:
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _deepseek(name: str, arguments: JsonObject) -> str:
    body = f"function<｜tool▁sep｜>{name}\n```json\n{_dump(arguments)}\n```"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _deepseek31(name: str, arguments: JsonObject) -> str:
    body = f"{name}<｜tool▁sep｜>{_dump(arguments)}"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _glm45(name: str, arguments: JsonObject) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def _kimik2(name: str, arguments: JsonObject) -> str:
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{_dump(arguments)}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


def _minimax(name: str, arguments: JsonObject) -> str:
    parameters = "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</minimax:tool_call>'


def _cohere(name: str, arguments: JsonObject) -> str:
    return f'<|START_ACTION|>[{{"tool_name": {_dump(name)}, "parameters": {_dump(arguments)}}}]<|END_ACTION|>'


TOOL_FORMATS: dict[str, Writer] = {
    "hermes": _hermes,
    "qwen": _hermes,
    "json": _json,
    "llama": _llama,
    "mistral": _mistral,
    "qwen_xml": _qwen_xml,
    "qwen_coder": _qwen_xml,
    "pythonic": _pythonic,
    "deepseek": _deepseek,
    "deepseek31": _deepseek31,
    "glm45_moe": _glm45,
    "kimik2": _kimik2,
    "minimax_m2": _minimax,
    "cohere": _cohere,
}
