"""Chooses parsers by what the chat template contains, else by model id or architecture. Called by `smg.pipeline.models`.

The template decides because it shows the format that the model was trained on; a name says only whom the model descends from.
"""

import re
from collections.abc import Iterable, Sequence

from smg.parser.reasoning.spec import REASONING

__all__ = ["detect_reasoning", "detect_tool", "opens_thinking"]

# What looks like another control mark: a thinking mark before it is not the one that the prompt ends with.
CONTROL = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[/?INST\]|</?(?:start|end)_of_turn>|<\|?/?turn\|?>")
TAIL = 65536

# family, then texts that a template of it has, all of them; the first row that fits wins.
TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("minimax_m3", ("]<]minimax[>[",)),
    ("openai", ("<|channel|>", "<|message|>", "functions")),
    ("inkling", ("<|content_invoke_tool_json|>",)),
    ("kimi_k3", ("<|open|>", "<|sep|>", "call")),
    ("kimik2", ("<|tool_calls_section_begin|>",)),
    ("deepseek32", ("｜DSML｜", "function_calls")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls")),
    ("deepseek", ("<｜tool▁calls▁begin｜>",)),
    ("step3", ("<｜tool_calls_begin｜>",)),
    ("minimax_m2", ("minimax:tool_call",)),
    ("seed_oss", ("seed:tool_call",)),
    ("muse_glimmer", ("atem:function_calls",)),
    ("hy_v3", ("<tool_calls{}>", "<arg_key{}>")),
    ("glm45_moe", ("<arg_key>",)),
    ("functionary_v3_1", ("start_tag => `<function`",)),
    ("functionary", (">>>${recipient}",)),
    ("minicpm5", ('<function name="', '<param name="')),
    ("solar_open2", ("<|tool_call:start|>", "<|tool_arg:start|>")),
    ("qwen_xml", ("<function=", "<parameter=")),
    ("qwen_xml", ("<function=", "</function>")),
    ("nemotron", ("<TOOLCALL>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("command_r_plus", ("json-formatted list of actions", '"tool_name"')),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("List of tools: ",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("gigachat3", ("<|role_sep|>", "function call")),
    ("gigachat3", ("<|function_call|>",)),
    ("internlm", ("<|action_start|>", "<|plugin|>")),
    ("solar", ("<|tool_call:begin|>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("sarashina", ("<|tool_calls|>",)),
    ("olmo3", ("<function_calls>",)),
    ("phi4_mini", ("functools[",)),
    ("hunyuan_a13b", ("<tool_calls>[",)),
    ("minimax_m1", ("<tool_calls>", '"arguments"')),
    ("qwen", ("<tool_call>",)),
    ("granite", ("<|tool_call|>",)),
    ("granite-20b-fc", ("<function_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(param",)),
    ("json", ("make calls in a single JSON array",)),
    ("llama", ("<|python_tag|>",)),
    ("llama", ('"parameters"', "ipython")),
)
REASONING_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai_gptoss", ("<|channel|>", "<|message|>")),
    ("inkling", ("<|content_thinking|>",)),
    ("kimi_k3", ("<|open|>", "<|sep|>", "think")),
    ("kimi", ("◁think▷",)),
    ("mistral", ("[THINK]",)),
    ("seed_oss", ("seed:think",)),
    ("cohere_cmd", ("<|START_THINKING|>",)),
    ("gemma4", ("<|channel>thought",)),
    ("hy_v3", ("<think{}>",)),
    ("minimax_m3", ("mm:think",)),
    ("muse_glimmer", ("to=self<|message|>",)),
    ("apertus", ("<|inner_prefix|>",)),
    ("apriel", ("[BEGIN FINAL RESPONSE]",)),
    ("solar", ("<|begin|>assistant<|think|>",)),
    ("solar_open2", ("<|think:start|>",)),
    ("granite", ("Here is my thought process",)),
    ("kimi_k25", ("think>", "<|tool_calls_section_begin|>")),
    ("deepseek_v31", ("think>", "<｜tool▁calls▁begin｜>")),
    ("deepseek_v31", ("think>", "｜DSML｜")),
    ("step3", ("think>", "<｜tool_calls_begin｜>")),
    ("minimax", ("think>", "minimax:tool_call")),
    ("hunyuan_a13b", ("<think>", "<tool_calls>[")),
    ("granite33", ("<think>", "<response>")),
    ("glm45", ("think>", "<arg_key>")),
    ("nano_v3", ("think>", "<TOOLCALL>")),
    ("qwen3", ("<think>",)),
    ("qwen3", ("</think>",)),
)

# Part of a model id or architecture, in lower case and without separators, and the family; the longest part that is contained wins.
TOOL_NAMES = {
    "gptoss": "openai",
    "qwen": "qwen",
    "qwen3.5": "qwen_xml",
    "qwen3coder": "qwen_xml",
    "mistral": "mistral",
    "mixtral": "mistral",
    "llama4": "pythonic",
    "llama": "llama",
    "deepseekv3": "deepseek",
    "deepseekr1": "deepseek",
    "deepseekv3.2": "deepseek32",
    "deepseekv32": "deepseek32",
    "deepseekv3.2exp": "deepseek",
    "deepseekv4": "deepseek_v4",
    "glm4.5": "glm45_moe",
    "glm4.6": "glm45_moe",
    "glm4moe": "glm45_moe",
    "glm4.7": "glm47_moe",
    "glm5": "glm47_moe",
    "step3": "step3",
    "kimik2": "kimik2",
    "kimik3": "kimi_k3",
    "inkling": "inkling",
    "minimaxm1": "minimax_m1",
    "minimax": "minimax_m2",
    "commandr": "cohere",
    "commanda": "cohere",
    "cohere": "cohere",
    "sarashina": "sarashina",
    "gemma4": "gemma4",
    "seedoss": "seed_oss",
    "hunyuan": "hunyuan_a13b",
    "minimaxm3": "minimax_m3",
    "minicpm5": "minicpm5",
    "smollm3": "qwen",
    "functionary": "functionary",
}
REASONING_NAMES = {
    "gptoss": "openai_gptoss",
    "deepseekr1": "deepseek_r1",
    "deepseekv3.1": "deepseek_v31",
    "deepseekv3.2": "deepseek_v31",
    "deepseekv32": "deepseek_v31",
    "deepseekv4": "deepseek_v31",
    "qwen3": "qwen3",
    "qwen3thinking": "qwen3_thinking",
    "qwq": "qwen3_thinking",
    "glm4.5": "glm45",
    "glm4.6": "glm45",
    "glm4.7": "glm45",
    "glm4moe": "glm45",
    "glm5": "glm45",
    "kimik2thinking": "kimi_thinking",
    "kimik2.5": "kimi_k25",
    "kimik3": "kimi_k3",
    "kimivl": "kimi",
    "step3": "step3",
    "minimax": "minimax",
    "minimaxm3": "minimax_m3",
    "commanda": "cohere_cmd",
    "commandr7b": "cohere_cmd",
    "nemotronnano": "nano_v3",
    "nemotronsuper": "nano_v3",
    "inkling": "inkling",
    "magistral": "mistral",
    "seedoss": "seed_oss",
    "hunyuan": "hunyuan_a13b",
    "apriel": "apriel",
    "smollm3": "qwen3",
}


# Models that think although their template has no mark of it.
UNMARKED_NAMES = {"minimaxm1": "minimax", "magistral": "mistral"}


def opens_thinking(prompt: str, reasoning: str | None) -> bool:
    """True when the rendered prompt ends inside a thinking block: its last start mark is followed by no end and no other control mark."""
    if not reasoning or reasoning not in REASONING:
        return False
    spec = REASONING.get(reasoning)
    tail = prompt[-TAIL:]
    start, mark = max(((tail.rfind(mark), mark) for mark in spec.starts), default=(-1, ""))
    if start < 0:
        return False
    after = tail[start + len(mark) :]
    return not any(end in after for end in (*spec.ends, *spec.also_ends)) and CONTROL.search(after) is None


def detect_reasoning(*, template: str = "", model: str = "", architectures: Sequence[str] = ()) -> str | None:
    """Gives the name of the reasoning family, or None. A template that marks no thinking belongs to a model that does not think."""
    found = _by_template(template, REASONING_SIGNS)
    return found or _by_name((model, *architectures), UNMARKED_NAMES if template else REASONING_NAMES)


def detect_tool(*, template: str = "", model: str = "", architectures: Sequence[str] = ()) -> str | None:
    """Gives the name of the tool family, or None."""
    found = _by_template(template, TOOL_SIGNS)
    return found or None if found is not None else _by_name((model, *architectures), TOOL_NAMES)


def _by_template(template: str, signs: Iterable[tuple[str, tuple[str, ...]]]) -> str | None:
    return next((name for name, texts in signs if all(text in template for text in texts)), None)


def _by_name(names: Iterable[str], known: dict[str, str]) -> str | None:
    for name in names:
        plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
        parts = [part for part in known if part in plain]
        if parts:
            return known[max(parts, key=len)]
    return None
