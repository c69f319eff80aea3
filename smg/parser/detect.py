"""Chooses parsers by what the chat template contains, else by architecture or model id. Called by `smg.pipeline.models`."""

import re
from collections.abc import Sequence

from smg.parser.reasoning.spec import REASONING

__all__ = ["detect_reasoning", "detect_tool", "opens_thinking"]

# What looks like another control mark: a thinking mark before it is not the one that the prompt ends with.
CONTROL = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[/?INST\]|</?(?:start|end)_of_turn>|<\|?/?turn\|?>|<\|eot_id\|>")
TAIL = 4096


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
    """Gives the name of the reasoning family, or None."""
    return "qwen3" if "<think>" in template else None


def detect_tool(*, template: str = "", model: str = "", architectures: Sequence[str] = ()) -> str | None:
    """Gives the name of the tool family, or None."""
    return "qwen" if "<tool_call>" in template else None
