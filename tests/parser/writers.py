"""Writes calls as each tool family's models do, from the published formats: what parsers are tested with. One writer a registered name."""

import json
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

Arguments: TypeAlias = "dict[str, object]"
Calls: TypeAlias = "list[tuple[str, Arguments]]"

SCHEMA = {
    "s": {"type": "string"},
    "t": {"type": ["string", "null"]},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "a": {"anyOf": [{"type": "array"}, {"type": "null"}]},
}


class Writer(Struct, frozen=True, kw_only=True):
    """`write` gives the output text of calls; `forbidden`: what a text value cannot hold in this format, having no escape for it."""

    write: Callable[[Calls], str]
    forbidden: tuple[str, ...] = ()


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def objects(calls: Calls, *, name: str = "name", arguments: str = "arguments") -> list[str]:
    return [compact({name: call, arguments: values}) for call, values in calls]


def each(begin: str, end: str, **keys: str) -> Writer:
    return Writer(write=lambda calls: "\n".join(f"{begin}{text}{end}" for text in objects(calls, **keys)))


def listed(begin: str, end: str, **keys: str) -> Writer:
    return Writer(write=lambda calls: f"{begin}[{', '.join(objects(calls, **keys))}]{end}")


def plain(value: object) -> str:
    return value if isinstance(value, str) else compact(value)


def tags(section: str, end: str, call: str, call_end: str, parameter: str, parameter_end: str, *, newline: str = "") -> Writer:
    """`call` and `parameter` have `{}` for the name; a value has `newline` around it."""

    def one(name: str, values: Arguments) -> str:
        inside = "".join(f"{parameter.format(key)}{newline}{plain(value)}{newline}{parameter_end}\n" for key, value in values.items())
        return f"{call.format(name)}\n{inside}{call_end}"

    def write(calls: Calls) -> str:
        return f"{section}\n" + "\n".join(one(*call) for call in calls) + f"\n{end}"

    return Writer(write=write, forbidden=(parameter_end,))


def qwen_xml(calls: Calls) -> str:
    inner = tags("<tool_call>", "</tool_call>", "<function={}>", "</function>", "<parameter={}>", "</parameter>", newline="\n")
    return "\n".join(inner.write([call]) for call in calls)


def invoke(section: str, prefix: str = "") -> Writer:
    return tags(
        f"<{section}>",
        f"</{section}>",
        f'<{prefix}invoke name="{{}}">',
        f"</{prefix}invoke>",
        f'<{prefix}parameter name="{{}}">',
        f"</{prefix}parameter>",
    )


def dsml(section: str) -> Writer:
    def one(name: str, values: Arguments) -> str:
        inside = "".join(
            f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{plain(value)}</｜DSML｜parameter>\n'
            for key, value in values.items()
        )
        return f'<｜DSML｜invoke name="{name}">\n{inside}</｜DSML｜invoke>\n'

    return Writer(
        write=lambda calls: f"<｜DSML｜{section}>\n{''.join(one(*call) for call in calls)}</｜DSML｜{section}>",
        forbidden=("</｜DSML｜parameter>",),
    )


def step3(calls: Calls) -> str:
    def one(name: str, values: Arguments) -> str:
        inside = "".join(f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>' for key, value in values.items())
        body = f'<steptml:invoke name="{name}">{inside}</steptml:invoke>'
        return f"<｜tool_call_begin｜>function<｜tool_sep｜>{body}<｜tool_call_end｜>"

    return f"<｜tool_calls_begin｜>{''.join(one(*call) for call in calls)}<｜tool_calls_end｜>"


def keyed(newline: str, *, tail: str = "", wrap: bool = False) -> Writer:
    def one(name: str, values: Arguments) -> str:
        inside = "".join(
            f"<arg_key{tail}>{key}</arg_key{tail}>{newline}<arg_value{tail}>{plain(value)}</arg_value{tail}>{newline}"
            for key, value in values.items()
        )
        sep = f"<tool_sep{tail}>" if wrap else ""
        return f"<tool_call{tail}>{name}{sep}{newline}{inside}</tool_call{tail}>"

    def write(calls: Calls) -> str:
        text = "\n".join(one(*call) for call in calls)
        return f"<tool_calls{tail}>\n{text}\n</tool_calls{tail}>" if wrap else text

    return Writer(write=write, forbidden=(f"</arg_value{tail}>",))


def xtml_kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "number", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


def kimi_k3(calls: Calls) -> str:
    def one(index: int, name: str, values: Arguments) -> str:
        inside = "".join(
            f'<|open|>argument key="{key}" type="{xtml_kind(value)}"<|sep|>{plain(value)}<|close|>argument<|sep|>'
            for key, value in values.items()
        )
        return f'<|open|>call tool="{name}" index="{index}"<|sep|>{inside}<|close|>call<|sep|>'

    inner = "".join(one(index, *call) for index, call in enumerate(calls, 1))
    return f"<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>"


def deepseek(calls: Calls) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{compact(values)}\n```<｜tool▁call▁end｜>" for name, values in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def deepseek31(calls: Calls) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{compact(values)}<｜tool▁call▁end｜>" for name, values in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi_k2(calls: Calls) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{compact(values)}<|tool_call_end|>"
        for index, (name, values) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def cohere(calls: Calls) -> str:
    made = [{"tool_call_id": str(index), "tool_name": name, "parameters": values} for index, (name, values) in enumerate(calls)]
    return f"<|START_ACTION|>{json.dumps(made, ensure_ascii=False, indent=4)}<|END_ACTION|>"


def python(calls: Calls, *, between: str = ", ") -> str:
    return between.join(f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})" for name, values in calls)


def gemma_value(value: object, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote}{key}{quote}:{gemma_value(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(item, quote) for item in value) + "]"
    return compact(value)


def gemma(begin: str, end: str, quote: str) -> Writer:
    def one(name: str, values: Arguments) -> str:
        return f"{begin}call:{name}{{{','.join(f'{key}:{gemma_value(value, quote)}' for key, value in values.items())}}}{end}"

    return Writer(write=lambda calls: "".join(one(*call) for call in calls), forbidden=(quote,))


def harmony(calls: Calls) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{compact(values)}<|call|>" for name, values in calls
    )


def inkling(calls: Calls) -> str:
    return "".join(
        f"<|message_model|>{name}<|content_invoke_tool_json|>{compact({'name': name, 'args': values})}<|end_message|>"
        for name, values in calls
    )


def solar(calls: Calls) -> str:
    return "".join(
        f"<|tool_call:begin|>id{index}<|tool_call:name|>{name}<|tool_call:args|>{compact(values)}<|tool_call:end|>"
        for index, (name, values) in enumerate(calls)
    )


def muse(calls: Calls) -> str:
    """Several recipients, the first after the prompt's own `<|start|>assistant`."""
    section = invoke("atem:function_calls", "atem:")
    return "<|eom|><|start|>assistant".join(f" to={name}<|message|>{section.write([(name, values)])}" for name, values in calls) + "<|eot|>"


def functionary(calls: Calls) -> str:
    return ">>>".join(f"{name}\n{compact(values)}" for name, values in calls)


def functionary_v3_1(calls: Calls) -> str:
    return "\n".join(f"<function={name}>{compact(values)}</function>" for name, values in calls)


def minicpm5(calls: Calls) -> str:
    def value(of: object) -> str:
        text = plain(of)
        return f"<![CDATA[{text}]]>" if any(char in text for char in "<&\n") else text

    def one(name: str, values: Arguments) -> str:
        inside = "".join(f'<param name="{key}">{value(of)}</param>' for key, of in values.items())
        return f'<function name="{name}">{inside}</function>'

    return "\n".join(one(*call) for call in calls)


def solar_open2(calls: Calls) -> str:
    def one(name: str, values: Arguments) -> str:
        inside = "".join(f"<|tool_arg:start|>{key}<|tool_arg:value|>{plain(of)}<|tool_arg:end|>\n" for key, of in values.items())
        return f"<|tool_call:start|>{name}\n{inside}<|tool_call:end|>"

    return "\n".join(one(*call) for call in calls)


def command_r_plus(calls: Calls) -> str:
    made = json.dumps([{"tool_name": name, "parameters": values} for name, values in calls], ensure_ascii=False, indent=4)
    return f"Action:\n```json\n{made}```"


def minimax_m3(calls: Calls) -> str:
    """Lists and objects as the template writes them; what the format has no way to write is written as JSON."""
    mark = "]<]minimax[>["

    def one(name: str, values: Arguments) -> str:
        inside = "".join(f"{mark}<{key}>{plain(of)}{mark}</{key}>" for key, of in values.items())
        return f'{mark}<invoke name="{name}">{inside}{mark}</invoke>\n'

    return f"{mark}<tool_call>\n{''.join(one(*call) for call in calls)}{mark}</tool_call>"


TOOL_WRITERS: dict[str, Writer] = {
    "qwen": each("<tool_call>\n", "\n</tool_call>"),
    "llama": Writer(write=lambda calls: "<|python_tag|>" + "; ".join(objects(calls, arguments="parameters"))),
    "json": listed("", "", arguments="parameters"),
    "cohere": Writer(write=cohere),
    "minimax_m1": Writer(write=lambda calls: "<tool_calls>\n" + "\n".join(objects(calls)) + "\n</tool_calls>"),
    "hunyuan_a13b": listed("<tool_calls>", "</tool_calls>"),
    "nemotron": listed("<TOOLCALL>", "</TOOLCALL>"),
    "granite": listed("<|tool_call|>", ""),
    "granite-20b-fc": each("<function_call> ", ""),
    "phi4_mini": listed("functools", ""),
    "internlm": each("<|action_start|><|plugin|>\n", "<|action_end|>", arguments="parameters"),
    "apertus": Writer(write=lambda calls: f"<|tools_prefix|>{compact([{name: values} for name, values in calls])}<|tools_suffix|>"),
    "gigachat3": each("<|function_call|>", ""),
    "longcat": each("<longcat_tool_call>", "</longcat_tool_call>"),
    "mistral": listed("[TOOL_CALLS] ", ""),
    "deepseek": Writer(write=deepseek31),
    "kimik2": Writer(write=kimi_k2),
    "solar": Writer(write=solar),
    "gemma4": gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "pythonic": Writer(write=lambda calls: f"[{python(calls)}]"),
    "olmo3": Writer(write=lambda calls: f"<function_calls>{python(calls, between=chr(10))}</function_calls>"),
    "lfm2": Writer(write=lambda calls: f"<|tool_call_start|>[{python(calls)}]<|tool_call_end|>"),
    "sarashina": Writer(write=lambda calls: f"<|tool_calls|>{[{'name': name, 'arguments': values} for name, values in calls]!r}"),
    "qwen_xml": Writer(write=qwen_xml, forbidden=("</parameter>",)),
    "seed_oss": tags("<seed:tool_call>", "</seed:tool_call>", "<function={}>", "</function>", "<parameter={}>", "</parameter>"),
    "minimax_m2": invoke("minimax:tool_call"),
    "muse_glimmer": Writer(write=muse, forbidden=("</atem:parameter>", "<|eom|>", "<|eot|>", "<|start|>")),
    "functionary": Writer(write=functionary),
    "functionary_v3_1": Writer(write=functionary_v3_1),
    "minicpm5": Writer(write=minicpm5, forbidden=("]]>",)),
    "solar_open2": Writer(write=solar_open2, forbidden=("<|tool_arg:end|>",)),
    "command_r_plus": Writer(write=command_r_plus),
    "minimax_m3": Writer(write=minimax_m3, forbidden=("]<]minimax[>[",)),
    "deepseek32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "step3": Writer(write=step3, forbidden=("</steptml:parameter>",)),
    "glm45_moe": keyed("\n"),
    "glm47_moe": keyed(""),
    "hy_v3": keyed("\n", tail=":opensource", wrap=True),
    "kimi_k3": Writer(write=kimi_k3, forbidden=("<|close|>argument<|sep|>",)),
    "openai": Writer(write=harmony),
    "inkling": Writer(write=inkling),
}
# Other forms that the same parser reads.
MORE_WRITERS: tuple[tuple[str, Writer], ...] = (
    ("muse_glimmer", invoke("atem:function_calls", "atem:")),
    ("qwen", listed("<tool_call>", "</tool_call>")),
    ("llama", Writer(write=lambda calls: "; ".join(objects(calls, arguments="parameters")))),
    ("mistral", Writer(write=lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(values)}" for name, values in calls))),
    ("mistral", Writer(write=lambda calls: "".join(f"[TOOL_CALLS]{name}{compact(values)}" for name, values in calls))),
    (
        "mistral",
        Writer(write=lambda calls: "".join(f"[TOOL_CALLS]{name}[CALL_ID]abc123def[ARGS]{compact(values)}" for name, values in calls)),
    ),
    ("deepseek", Writer(write=deepseek)),
    ("pythonic", Writer(write=lambda calls: f"<|python_start|>[{python(calls)}]<|python_end|>")),
    ("pythonic", Writer(write=lambda calls: "; ".join(objects(calls, arguments="parameters")))),
)
