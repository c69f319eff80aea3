"""Parsers of model output: text in, in any division; thoughts, text and tool calls out."""

from smg.parser.base import Call, CallArguments, Parser, Piece, Text, Thought
from smg.parser.build import build, marks, schemas_of, wrote_thoughts
from smg.parser.detect import detect_reasoning, detect_tool, opens_thinking
from smg.parser.reasoning import REASONING
from smg.parser.tool import TOOLS

__all__ = [
    "REASONING",
    "TOOLS",
    "Call",
    "CallArguments",
    "Parser",
    "Piece",
    "Text",
    "Thought",
    "build",
    "detect_reasoning",
    "detect_tool",
    "marks",
    "opens_thinking",
    "schemas_of",
    "wrote_thoughts",
]
