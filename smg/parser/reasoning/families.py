"""The reasoning families, as data: the original's names first, then those of vLLM, as aliases or as families of their own."""

from smg.parser.reasoning.spec import REASONING, ReasoningSpec

__all__: list[str] = []

THINK, END = ("<think>",), ("</think>",)
DEEPSEEK_SECTIONS = ("<｜tool▁calls▁begin｜>", "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
KIMI_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
STEP_SECTIONS = ("<｜tool_calls_begin｜>",)


def think(*, also_ends: tuple[str, ...] = (), assumed: bool = False) -> ReasoningSpec:
    """The marks that most families share."""
    return ReasoningSpec(starts=THINK, ends=END, also_ends=also_ends, assumed=assumed)


def family(name: str, spec: ReasoningSpec, *aliases: str) -> None:
    """Files a family under its name and aliases."""
    REASONING.register(name, aliases=aliases)(spec)


family("deepseek_r1", think(also_ends=DEEPSEEK_SECTIONS, assumed=True), "deepseek-r1")
family("deepseek_v31", think(also_ends=DEEPSEEK_SECTIONS), "deepseek_v3", "deepseek-v3", "deepseek_v32", "deepseek_v4", "deepseek_v41")
family("qwen3_thinking", think(assumed=True))
family("qwen3", think(), "smollm3", "intern_s1", "mimo", "hunyuan_dense", "exaone4", "holo2", "olmo3", "minicpm5", "longcat")
family("glm45", think(), "glm4_moe", "glm47", "glm47_moe", "glm45_moe", "poolside_v1", "ling3")
family("kimi_thinking", think(also_ends=KIMI_SECTIONS, assumed=True), "kimi_k2")
family("kimi_k25", think(also_ends=KIMI_SECTIONS))
family(
    "kimi_k3",
    ReasoningSpec(
        starts=("<|open|>think<|sep|>",),
        ends=("<|close|>think<|sep|>",),
        also_ends=("<|open|>response<|sep|>", "<|open|>message<|sep|>", "<|open|>tools<|sep|>"),
        layout=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|open|>message<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
    ),
)
family("kimi", ReasoningSpec(starts=("◁think▷",), ends=("◁/think▷",)))
family("step3", think(also_ends=STEP_SECTIONS, assumed=True), "step3p5")
family("minimax", think(also_ends=("<minimax:tool_call>",), assumed=True), "minimax_m1", "minimax_m2", "minimax_m2_append_think")
family(
    "cohere_cmd",
    ReasoningSpec(
        starts=("<|START_THINKING|>",),
        ends=("<|END_THINKING|>",),
        also_ends=("<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
        layout=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<|END_ACTION|>"),
        citations=True,
    ),
    "cohere_command3",
    "cohere_command4",
    "cohere_command",
)
family("nano_v3", think(), "nemotron", "nemotron_v3", "nemotron_nano_v2", "nemotron_nano_v3")
family(
    "inkling",
    ReasoningSpec(channels="inkling", starts=("<|content_thinking|>",), ends=("<|end_message|>", "<|content_model_end_sampling|>")),
)
family("muse_glimmer", ReasoningSpec(channels="muse", starts=("to=self<|message|>",), ends=("<|eom|>",)))
family("base", think())

# Families that the original handles elsewhere, or that only vLLM names.
family(
    "openai_gptoss",
    ReasoningSpec(channels="harmony", starts=("<|channel|>analysis<|message|>",), ends=("<|end|>",)),
    "harmony",
    "gpt_oss",
    "gpt-oss",
    "openai",
)
family("mistral", ReasoningSpec(starts=("[THINK]",), ends=("[/THINK]",), also_ends=("[TOOL_CALLS]",)), "magistral")
family("seed_oss", ReasoningSpec(starts=("<seed:think>",), ends=("</seed:think>",)), "seedoss")
family("hunyuan_a13b", ReasoningSpec(starts=THINK, ends=END, layout=("<answer>", "</answer>")))
family("granite33", ReasoningSpec(starts=THINK, ends=END, layout=("<response>", "</response>")), "granite3_3", "ernie45")
family("hy_v3", ReasoningSpec(starts=("<think:opensource>",), ends=("</think:opensource>",)), "hy_v4")
family("minimax_m3", ReasoningSpec(starts=("<mm:think>",), ends=("</mm:think>",)))
family("apertus", ReasoningSpec(starts=("<|inner_prefix|>",), ends=("<|inner_suffix|>",)))
family(
    "apriel",
    ReasoningSpec(
        starts=("Here are my reasoning steps:",),
        ends=("[BEGIN FINAL RESPONSE]",),
        also_ends=("<tool_calls>",),
        layout=("[END FINAL RESPONSE]", "<|end|>"),
    ),
)
SOLAR_LAYOUT = ("<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>")
family("solar", ReasoningSpec(starts=("<|think|>",), ends=("<|end|>",), also_ends=("<|tool_calls|>",), layout=SOLAR_LAYOUT))
family("solar_open2", ReasoningSpec(starts=("<|think:start|>",), ends=("<|think:end|>",)))
family("gemma4", ReasoningSpec(starts=("<|channel>thought",), ends=("<channel|>",)))
family(
    "granite",
    ReasoningSpec(
        starts=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
        spaces=True,
    ),
)
