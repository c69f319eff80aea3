"""The token counts in an answer that is passed on: bytes in, counts out, without decoding the answer. Called by `relay.py` for the metrics.

OpenAI's names and Anthropic's. Inside a JSON string the quotes of `"usage"` would be escaped, so what is found is a key (or a string of
exactly that word, which no number follows).
"""

import re

__all__ = ["KEY", "usage_in"]

KEY = b'"usage"'
LOOKED_AT = 512
COUNT = re.compile(rb'"(prompt_tokens|input_tokens|completion_tokens|output_tokens)"\s*:\s*(\d{1,12})\b')


def usage_in(data: bytes) -> tuple[int, int]:
    """Gives (prompt tokens, completion tokens) of the last usage in the data, 0 for what it does not tell."""
    at = data.rfind(KEY)
    if at < 0:
        return 0, 0
    counts = {name[:6]: int(number) for name, number in COUNT.findall(data, at, at + LOOKED_AT)}
    return counts.get(b"prompt", counts.get(b"input_", 0)), counts.get(b"comple", counts.get(b"output", 0))
