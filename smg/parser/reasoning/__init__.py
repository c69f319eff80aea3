"""Reasoning families: how each model marks its thinking. Pure data; `smg.parser.machine` reads it."""

import smg.parser.reasoning.families  # noqa: F401  registers
from smg.parser.reasoning.spec import REASONING, ReasoningSpec

__all__ = ["REASONING", "ReasoningSpec"]
