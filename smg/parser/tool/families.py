"""The tool-call families, as data: the original's names first, then those of vLLM, as aliases or as families of their own."""

import secrets
import string
from functools import partial

from msgspec import structs

from smg.parser.tool.grammar.choice import choice
from smg.parser.tool.grammar.json_calls import JsonFormat, json_calls
from smg.parser.tool.grammar.literal import Literal
from smg.parser.tool.grammar.named_json import Field, NamedFormat, named_json
from smg.parser.tool.grammar.nested import nested_calls
from smg.parser.tool.grammar.pythonic import pythonic_calls
from smg.parser.tool.grammar.tagged import TaggedFormat, tagged_calls
from smg.parser.tool.grammar.transduced import literal_calls
from smg.parser.tool.reader import MakeReader
from smg.parser.tool.spec import TOOLS, ToolSpec

__all__: list[str] = []

FENCE = "```"
KIMI_PREFIX = "functions."


def family(name: str, spec: ToolSpec, *aliases: str) -> None:
    """Files a family under its name and aliases."""
    TOOLS.register(name, aliases=aliases)(spec)


def json_between(open_mark: str, close_mark: str = "", *, names: tuple[str, ...] = ("name",), id_key: str = "") -> ToolSpec:
    """Objects or lists of them between two marks; without the second they end with the outermost value."""
    closes = (close_mark,) if close_mark else ()
    return ToolSpec(reader=json_calls(JsonFormat(closes=closes, names=names, id_key=id_key)), opens=(open_mark,), strays=closes)


def tagged(form: TaggedFormat) -> ToolSpec:
    """Tags; a call may also come without its section's marks."""
    ends = (form.call_close, *form.closes)
    return ToolSpec(reader=tagged_calls(form), opens=(*form.sections, form.call_open), strays=tuple(dict.fromkeys(ends)), inner=form.marks)


def named(form: NamedFormat) -> ToolSpec:
    """A header and a JSON value; a call may also come without its section's marks."""
    return ToolSpec(reader=named_json(form), opens=(*form.sections, *form.begins), strays=(*form.ends, *form.closes), inner=form.marks)


# JSON objects

family("qwen", json_between("<tool_call>", "</tool_call>"), "hermes", "granite4", "qwen25", "ernie45", "mimo", "smollm")
family("llama", ToolSpec(reader=json_calls(JsonFormat()), opens=("<|python_tag|>",), bare="{["), "llama3_json", "llama3", "llama4_json")
family("json", ToolSpec(reader=json_calls(JsonFormat()), bare="{[", opens=("[TOOL_CALLS]",)), "xlam")
COHERE_LAYOUT = ("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
family(
    "cohere",
    structs.replace(
        json_between("<|START_ACTION|>", "<|END_ACTION|>", names=("tool_name", "name"), id_key="tool_call_id"),
        strays=COHERE_LAYOUT,
        citations=True,
    ),
    "cohere_command3",
    "cohere_command4",
    "cohere_command",
)
family(
    "command_r_plus",
    ToolSpec(
        reader=json_calls(JsonFormat(closes=("```",), names=("tool_name", "name"))),
        opens=("Action:\n```json", "Action: ```json", "Action:```json"),
    ),
    "command-r-plus",
)
family("minimax_m1", structs.replace(json_between("<tool_calls>", "</tool_calls>"), thinks="minimax"), "minimax")
family("hunyuan_a13b", json_between("<tool_calls>", "</tool_calls>"), "jamba", "apriel")
family("nemotron", json_between("<TOOLCALL>", "</TOOLCALL>"), "nemotron_json", "nemotron_nano_v2")
family("granite", json_between("<|tool_call|>"))
family("granite-20b-fc", json_between("<function_call>"))
family("phi4_mini", json_between("functools"), "phi4_mini_json")
family("internlm", json_between("<|action_start|><|plugin|>", "<|action_end|>"), "internlm2")
family(
    "apertus",
    ToolSpec(
        reader=json_calls(JsonFormat(closes=("<|tools_suffix|>",), keyed=True)),
        opens=("<|tools_prefix|>",),
        strays=("<|tools_suffix|>",),
    ),
)
family("gigachat3", ToolSpec(reader=json_calls(JsonFormat()), opens=("<|function_call|>", "function call<|role_sep|>")))
family("longcat", json_between("<longcat_tool_call>", "</longcat_tool_call>"))


# Python and near-JSON


def pythonic_form(first: str) -> MakeReader | None:
    """Llama 4 writes JSON where Python was asked for (known-bugs B42)."""
    if first == "[":
        return None
    return PYTHONIC_JSON if "{" in first[:2] else PYTHONIC_CALLS


PYTHONIC_MARKS = ("<|python_start|>", "<|python_end|>")
PYTHONIC_JSON = json_calls(JsonFormat(closes=("<|python_end|>",)), marks=PYTHONIC_MARKS)
PYTHONIC_CALLS = pythonic_calls(closes=("<|python_end|>",), marks=PYTHONIC_MARKS)
family(
    "pythonic",
    ToolSpec(reader=choice(pythonic_form, marks=PYTHONIC_MARKS), opens=("<|python_start|>",), bare="[{", strays=("<|python_end|>",)),
    "llama4_pythonic",
    "llama4",
)


def pythonic_between(open_mark: str, close_mark: str) -> ToolSpec:
    """Python calls between two marks."""
    return ToolSpec(reader=pythonic_calls(closes=(close_mark,)), opens=(open_mark,), strays=(close_mark,))


family("olmo3", pythonic_between("<function_calls>", "</function_calls>"))
family("lfm2", pythonic_between("<|tool_call_start|>", "<|tool_call_end|>"))
family("sarashina", ToolSpec(reader=literal_calls(json_calls(JsonFormat())), opens=("<|tool_calls|>",), bare="[{"))

# the whole output has a format of its own
family("openai", ToolSpec(channels="harmony"), "harmony", "gpt_oss", "gpt-oss")
family("inkling", ToolSpec(channels="inkling"))
family("functionary", ToolSpec(channels="functionary"), "functionary_v3_2")

# a header, then JSON


def kimi_header(fields: list[Field]) -> tuple[str, str | None]:
    """`functions.NAME:INDEX`, which is also the call's id."""
    call_id = fields[0].text.strip()
    name, _, index = call_id.rpartition(":")
    if not index.isdigit():
        return call_id.removeprefix(KIMI_PREFIX), None
    return name.removeprefix(KIMI_PREFIX), call_id


def deepseek_header(fields: list[Field]) -> tuple[str, str | None] | None:
    """V3.1 `NAME` before the separator; V3 `function` before it, then the name, a newline and a fence."""
    last = fields[-1]
    if last.mark == "<｜tool▁sep｜>" and fields[0].text.strip() == "function":
        return None
    texts = [field.text.partition(FENCE)[0].strip() for field in fields]
    kept = [text for text in texts if text]
    return (kept[-1] if len(kept) > 1 and kept[0] == "function" else kept[0], None) if kept else ("", None)


def mistral_header(fields: list[Field]) -> tuple[str, str | None] | None:
    """`NAME`, perhaps `[CALL_ID]` and an id, perhaps `[ARGS]`."""
    if fields[-1].mark == "[CALL_ID]":
        return None
    marked = len(fields) > 1 and fields[0].mark == "[CALL_ID]"
    return fields[0].text.strip(), fields[1].text.strip() or None if marked else None


def gemma_header(fields: list[Field]) -> tuple[str, str | None] | None:
    """`call:NAME`."""
    return fields[0].text.strip().removeprefix("call:").strip(), None


def gemma(open_mark: str, close_mark: str, quote: str) -> ToolSpec:
    """`call:NAME{key:value}` with a quote mark of its own around texts."""
    spec = named(NamedFormat(header=gemma_header, begins=(open_mark,), ends=(close_mark,), value=partial(Literal, mark=quote)))
    return structs.replace(spec, inner=(*spec.inner, quote))


def solar_header(fields: list[Field]) -> tuple[str, str | None] | None:
    """An id, then the name."""
    return None if len(fields) < 2 else (fields[1].text.strip(), fields[0].text.strip() or None)


def mistral_id() -> str:
    """Nine letters and digits: Mistral's templates refuse any other (known-bugs B40)."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


MISTRAL_LIST = json_calls(JsonFormat(), marks=("[TOOL_CALLS]",))
MISTRAL_NAMED = named_json(NamedFormat(header=mistral_header, begins=("[TOOL_CALLS]",), inner=("[CALL_ID]", "[ARGS]")))


def mistral_form(first: str) -> MakeReader:
    """The list of v3 to v7, or the named form since v11."""
    return MISTRAL_LIST if first[0] in "[{" else MISTRAL_NAMED


family(
    "mistral",
    ToolSpec(
        reader=choice(mistral_form, marks=("[TOOL_CALLS]",)),
        opens=("[TOOL_CALLS]",),
        inner=("[CALL_ID]", "[ARGS]"),
        new_id=mistral_id,
    ),
)
DEEPSEEK_END = ("<｜end▁of▁sentence｜>",)


def ended(spec: ToolSpec) -> ToolSpec:
    """DeepSeek's end of text is dropped where it was decoded."""
    return structs.replace(spec, drops=DEEPSEEK_END)


family(
    "deepseek",
    ended(
        named(
            NamedFormat(
                header=deepseek_header,
                sections=("<｜tool▁calls▁begin｜>",),
                begins=("<｜tool▁call▁begin｜>",),
                inner=("<｜tool▁sep｜>",),
                ends=("<｜tool▁call▁end｜>",),
                closes=("<｜tool▁calls▁end｜>",),
            )
        )
    ),
    "deepseek31",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_r1",
    "deepseekv3",
    "deepseekv31",
)
family(
    "kimik2",
    named(
        NamedFormat(
            header=kimi_header,
            sections=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
            begins=("<|tool_call_begin|>",),
            inner=("<|tool_call_argument_begin|>",),
            ends=("<|tool_call_end|>",),
            closes=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        )
    ),
    "kimi_k2",
)
family("gemma4", gemma("<|tool_call>", "<tool_call|>", '<|"|>'))
family("functiongemma", gemma("<start_function_call>", "<end_function_call>", "<escape>"))
SOLAR = NamedFormat(
    header=solar_header,
    begins=("<|tool_call:begin|>",),
    inner=("<|tool_call:name|>", "<|tool_call:args|>"),
    ends=("<|tool_call:end|>",),
)
SOLAR_LAYOUT = ("<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>", "<|end|>")
family("solar", structs.replace(named(SOLAR), strays=("<|tool_call:end|>", *SOLAR_LAYOUT)))

# tags

QWEN_XML = TaggedFormat(
    sections=("<tool_call>",),
    call_open="<function=",
    name_ends=(">",),
    parameter_open="<parameter=",
    key_end=">",
    parameter_close="</parameter>",
    call_close="</function>",
    closes=("</tool_call>",),
    trim=True,
)
family("qwen_xml", tagged(QWEN_XML), "qwen_coder", "qwen3_coder", "qwen3_xml", "step3p5", "nemotron_v3")
family(
    "seed_oss",
    tagged(
        TaggedFormat(
            sections=("<seed:tool_call>",),
            call_open="<function=",
            name_ends=(">",),
            parameter_open="<parameter=",
            key_end=">",
            parameter_close="</parameter>",
            call_close="</function>",
            closes=("</seed:tool_call>",),
        )
    ),
)
family(
    "minicpm5",
    tagged(
        TaggedFormat(
            call_open="<function",
            name_ends=(">",),
            name_key="name",
            parameter_open="<param",
            key_end=">",
            key_key="name",
            parameter_close="</param>",
            call_close="</function>",
            cdata=True,
        )
    ),
)
family(
    "functionary_v3_1",  # parameters are one JSON object; the tags for them are there in name only
    tagged(
        TaggedFormat(
            call_open="<function=",
            name_ends=(">",),
            parameter_open="<parameter=",
            key_end=">",
            parameter_close="</parameter>",
            call_close="</function>",
        )
    ),
)
family(
    "solar_open2",
    tagged(
        TaggedFormat(
            call_open="<|tool_call:start|>",
            name_ends=("\n",),
            parameter_open="<|tool_arg:start|>",
            key_end="<|tool_arg:value|>",
            parameter_close="<|tool_arg:end|>",
            call_close="<|tool_call:end|>",
        )
    ),
)


def invoke(section: str, *, prefix: str = "", type_key: str = "") -> TaggedFormat:
    """`<invoke name="…"><parameter name="…">` with a prefix in each tag."""
    return TaggedFormat(
        sections=(f"<{section}>",),
        call_open=f"<{prefix}invoke",
        name_ends=(">",),
        name_key="name",
        parameter_open=f"<{prefix}parameter",
        key_end=">",
        key_key="name",
        type_key=type_key,
        parameter_close=f"</{prefix}parameter>",
        call_close=f"</{prefix}invoke>",
        closes=(f"</{section}>",),
    )


MINIMAX = "]<]minimax[>["
family(
    "minimax_m3",
    ToolSpec(
        reader=nested_calls(MINIMAX),
        opens=(f"{MINIMAX}<tool_call>", f"{MINIMAX}<invoke"),
        strays=(f"{MINIMAX}</tool_call>", f"{MINIMAX}</invoke>"),
        inner=(MINIMAX,),
        thinks="minimax_m3",
    ),
)
family("minimax_m2", tagged(invoke("minimax:tool_call")), "minimax-m2")
family("muse_glimmer", structs.replace(tagged(invoke("atem:function_calls", prefix="atem:")), channels="muse", thinks="muse_glimmer"))
family("deepseek32", ended(tagged(invoke("｜DSML｜function_calls", prefix="｜DSML｜", type_key="string"))), "deepseek_v32", "deepseekv32")
family("deepseek_v4", ended(tagged(invoke("｜DSML｜tool_calls", prefix="｜DSML｜", type_key="string"))), "deepseek_v41")
family(
    "step3",
    tagged(
        TaggedFormat(
            sections=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
            noise=("function<｜tool_sep｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
            call_open="<steptml:invoke",
            name_ends=(">",),
            name_key="name",
            parameter_open="<steptml:parameter",
            key_end=">",
            key_key="name",
            parameter_close="</steptml:parameter>",
            call_close="</steptml:invoke>",
            closes=("<｜tool_calls_end｜>",),
        )
    ),
)


def kimi_k3(form: TaggedFormat) -> ToolSpec:
    """The answer too stands between marks, whether or not a reasoning parser takes them out."""
    spec = tagged(form)
    around = tuple(f"<|{side}|>{channel}<|sep|>" for side in ("open", "close") for channel in ("response", "message"))
    return structs.replace(spec, strays=(*spec.strays, *around, "<|end_of_msg|>"))


def keyed(*, mark: str = "", sections: tuple[str, ...] = (), closes: tuple[str, ...] = (), sep: str = "\n") -> TaggedFormat:
    """The name, then `<arg_key>` and `<arg_value>` in turn; `mark` stands at the end of each tag's name."""
    return TaggedFormat(
        sections=sections,
        call_open=f"<tool_call{mark}>",
        name_ends=(sep,),
        parameter_open=f"<arg_key{mark}>",
        key_end=f"</arg_key{mark}>",
        value_open=f"<arg_value{mark}>",
        parameter_close=f"</arg_value{mark}>",
        call_close=f"</tool_call{mark}>",
        closes=closes,
    )


family("glm45_moe", tagged(keyed()), "glm45", "glm", "glm4_moe", "poolside_v1", "ling3")
family("glm47_moe", tagged(keyed()), "glm47")
family(
    "hy_v3",
    tagged(
        keyed(
            mark=":opensource",
            sections=("<tool_calls:opensource>",),
            closes=("</tool_calls:opensource>",),
            sep="<tool_sep:opensource>",
        )
    ),
    "hy_v4",
)
family(
    "kimi_k3",
    kimi_k3(
        TaggedFormat(
            sections=("<|open|>tools<|sep|>",),
            call_open="<|open|>call",
            name_ends=("<|sep|>",),
            name_key="tool",
            parameter_open="<|open|>argument",
            key_end="<|sep|>",
            key_key="key",
            type_key="type",
            parameter_close="<|close|>argument<|sep|>",
            call_close="<|close|>call<|sep|>",
            closes=("<|close|>tools<|sep|>",),
            entities=True,
            id_form="{name}:{index}",
        )
    ),
)
