"""Which parsers a model gets: the template's content decides, then its name."""

import pathlib

import pytest

from smg.parser import REASONING, TOOLS, detect_reasoning, detect_tool, marks
from smg.parser.detect import REASONING_NAMES, REASONING_SIGNS, TOOL_NAMES, TOOL_SIGNS

EXPECTED = {
    "llama.cpp/Qwen-Qwen2.5-7B-Instruct": ("qwen", None),
    "llama.cpp/Qwen-Qwen3-0.6B": ("qwen", "qwen3"),
    "llama.cpp/Qwen3-Coder": ("qwen_xml", None),
    "llama.cpp/Qwen3.5-4B": ("qwen_xml", "qwen3"),
    "llama.cpp/deepseek-ai-DeepSeek-V3.1": ("deepseek", "deepseek_v31"),
    "llama.cpp/deepseek-ai-DeepSeek-V3.2": ("deepseek32", "deepseek_v31"),
    "llama.cpp/deepseek-ai-DeepSeek-V4": ("deepseek_v4", "deepseek_v31"),
    "llama.cpp/moonshotai-Kimi-K2": ("kimik2", None),
    "llama.cpp/Kimi-K2-Thinking": ("kimik2", "kimi_k25"),
    "llama.cpp/Kimi-K3": ("kimi_k3", "kimi_k3"),
    "llama.cpp/GLM-4.6": ("glm45_moe", "glm45"),
    "llama.cpp/MiniMax-M2": ("minimax_m2", "minimax"),
    "llama.cpp/MiniMax-M1": ("minimax_m1", None),
    "llama.cpp/MiniMax-M3": ("minimax_m3", "minimax_m3"),
    "llama.cpp/Apertus-8B-Instruct": ("apertus", "apertus"),
    "llama.cpp/GigaChat3.1-10B-A1.8B": ("gigachat3", None),
    "llama.cpp/openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "llama.cpp/NVIDIA-Nemotron-Nano-v2": ("nemotron", "nano_v3"),
    "llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen_xml", "qwen3"),
    "llama.cpp/ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "llama.cpp/tencent-Hy3": ("hy_v3", "hy_v3"),
    "llama.cpp/ibm-granite-granite-3.3-2B-Instruct": ("granite", "granite33"),
    "llama.cpp/ibm-granite-granite-4.0": ("qwen", None),
    "llama.cpp/HuggingFaceTB-SmolLM3-3B": (None, "qwen3"),
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", "cohere_cmd"),
    "llama.cpp/google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "llama.cpp/meta-llama-Llama-3.1-8B-Instruct": ("llama", None),
    "llama.cpp/meta-llama-Llama-3.2-3B-Instruct": ("llama", None),
    "llama.cpp/StepFun3.5-Flash": ("qwen_xml", "qwen3"),
    "vllm/tool_chat_template_llama4_pythonic": ("pythonic", None),
    "vllm/tool_chat_template_llama3.2_pythonic": ("pythonic", None),
    "vllm/tool_chat_template_gemma3_pythonic": ("pythonic", None),
    "vllm/tool_chat_template_hunyuan_a13b": ("hunyuan_a13b", "hunyuan_a13b"),
    "vllm/tool_chat_template_phi4_mini": ("phi4_mini", None),
    "vllm/tool_chat_template_xlam_qwen": ("json", None),
    "llama.cpp/google-gemma-2-2b-it": (None, None),
    "llama.cpp/openbmb-MiniCPM5-1B": ("minicpm5", "qwen3"),
    "llama.cpp/meetkai-functionary-medium-v3.1": ("functionary_v3_1", None),
    "llama.cpp/meetkai-functionary-medium-v3.2": ("functionary", None),
    "llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use": ("command_r_plus", None),
    "llama.cpp/fireworks-ai-llama-3-firefunction-v2": ("phi4_mini", None),
    "llama.cpp/Apriel-1.6-15b-Thinker-fixed": ("hunyuan_a13b", "apriel"),
    "llama.cpp/upstage-Solar-Open-100B": ("solar", "solar"),
    "llama.cpp/muse-glimmer": ("muse_glimmer", "muse_glimmer"),
    "llama.cpp/LFM2.5-8B-A1B": ("lfm2", "qwen3"),
    "llama.cpp/Spark2.5": ("glm45_moe", "glm45"),
    "llama.cpp/Cohere2MoE": ("cohere", "cohere_cmd"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_templates(shared: pathlib.Path, name: str) -> None:
    text = (shared / "fixtures" / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert (detect_tool(template=text), detect_reasoning(template=text)) == EXPECTED[name]


@pytest.mark.parametrize(
    ("model", "tool", "reasoning"),
    [
        ("Qwen/Qwen3-Coder-30B-A3B", "qwen_xml", "qwen3"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-R1", "deepseek", "deepseek_r1"),
        ("moonshotai/Kimi-K2-Thinking", "kimik2", "kimi_thinking"),
        ("zai-org/GLM-4.7", "glm47_moe", "glm45"),
        ("meta-llama/Llama-4-Scout", "pythonic", None),
        ("nobody/knows", None, None),
    ],
)
def test_names(model: str, tool: str | None, reasoning: str | None) -> None:
    assert (detect_tool(model=model), detect_reasoning(model=model)) == (tool, reasoning)


def test_architecture_counts_when_the_name_says_nothing() -> None:
    assert detect_tool(model="my-model", architectures=("Qwen3MoeForCausalLM",)) == "qwen"
    assert detect_reasoning(model="my-model", architectures=("DeepseekV32ForCausalLM",)) == "deepseek_v31"


def test_template_wins_over_the_name() -> None:
    assert detect_tool(template="… [TOOL_CALLS] …", model="Qwen/Qwen3-8B") == "mistral"
    assert detect_reasoning(template="no thoughts", model="Qwen/Qwen3-8B") is None
    assert detect_reasoning(template="no thoughts", model="MiniMaxAI/MiniMax-M1-80k") == "minimax"


def test_detection_names_registered_families() -> None:
    assert {name for name, _ in TOOL_SIGNS} | set(TOOL_NAMES.values()) <= {"", *TOOLS.names()}
    assert {name for name, _ in REASONING_SIGNS} | set(REASONING_NAMES.values()) <= set(REASONING.names())


def test_marks_hold_the_special_tokens_of_longer_marks() -> None:
    assert {"<|open|>", "<|sep|>", "<|close|>"} <= set(marks("kimi_k3", "kimi_k3"))
    assert {"<think>", "</think>", "<tool_call>", "</tool_call>"} <= set(marks("qwen3", "hermes"))
    assert {"<|channel|>", "<|call|>"} <= set(marks("openai_gptoss", "openai"))
    assert {"[TOOL_CALLS]", "[ARGS]", "[THINK]"} <= set(marks("mistral", "mistral"))
    assert '<|"|>' in marks(None, "gemma4")
    assert marks(None, None) == ()
