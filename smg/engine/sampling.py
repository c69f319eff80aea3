"""What several protocols share in writing a request: constraints, seeds. Called by the drivers' `encode`."""

import json

from smg.types.job import Constraint

__all__ = ["ANY_OBJECT", "CONSTRAINTS", "PARAMS", "choice_pattern", "narrow_seed", "text_constraint"]

ANY_OBJECT = '{"type": "object"}'
CONSTRAINTS = frozenset({"json_object", "json_schema", "regex", "grammar", "structural_tag", "choice"})
PARAMS = {
    "json_object": "response_format",
    "json_schema": "response_format",
    "structural_tag": "response_format",
    "regex": "regex",
    "grammar": "ebnf",
    "choice": "guided_choice",
}
SPECIAL = frozenset("\\^$.|?*+()[]{}")
CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def narrow_seed(seed: int, *, bits: int) -> int:
    """Gives a seed in 0 .. 2^bits-1: one that fits stays, a wider or negative one is folded, the same way every time."""
    value = seed & (2**64 - 1) if seed < 0 or seed >= 2**bits else seed
    while value >> bits:
        value = (value >> bits) ^ (value & (2**bits - 1))
    return value


def choice_pattern(value: str) -> str:
    """Gives a regular expression that matches exactly the texts of a JSON list. Raises ValueError when `value` is none."""
    texts = json.loads(value)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("a choice constraint needs a list of texts")
    return "(" + "|".join("".join(_escape(char) for char in text) for text in texts) + ")"


def _escape(char: str) -> str:
    return CONTROLS.get(char) or (f"\\{char}" if char in SPECIAL else char)


def text_constraint(constraint: Constraint | None) -> dict[str, str]:
    """Gives field and value for the protocols whose constraints are all text: SGLang's and TokenSpeed's."""
    if constraint is None:
        return {}
    match constraint.kind:
        case "json_object":
            return {"json_schema": ANY_OBJECT}
        case "json_schema":
            return {"json_schema": constraint.value}
        case "regex":
            return {"regex": constraint.value}
        case "grammar":
            return {"ebnf_grammar": constraint.value}
        case "structural_tag":
            return {"structural_tag": constraint.value}
        case "choice":
            return {"regex": choice_pattern(constraint.value)}
