"""The tool-call families, as data: the original's names first, then those of vLLM, as aliases or as families of their own."""

from smg.parser.tool.grammar.json_calls import JsonFormat, json_calls
from smg.parser.tool.spec import TOOLS, ToolSpec

__all__: list[str] = []


def family(name: str, spec: ToolSpec, *aliases: str) -> None:
    """Files a family under its name and aliases."""
    TOOLS.register(name, aliases=aliases)(spec)


family(
    "qwen",
    ToolSpec(reader=json_calls(JsonFormat(closes=("</tool_call>",))), opens=("<tool_call>",), strays=("</tool_call>",)),
    "hermes",
)
