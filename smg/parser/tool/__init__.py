"""Tool-call families: how each model writes its calls. Families are data, grammars are code in `smg.parser.tool.grammar`."""

import smg.parser.tool.families  # noqa: F401  registers
from smg.parser.tool.spec import TOOLS, ToolSpec
from smg.parser.tool.tags import forced_tags

__all__ = ["TOOLS", "ToolSpec", "forced_tags"]
