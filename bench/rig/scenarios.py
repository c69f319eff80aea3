"""The loads that a gateway is measured under. A name is a kind and a concurrency: `a32` is kind `a` with 32 clients."""

from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["KINDS", "Scenario", "find"]

SHORT, LONG = 50, 7800  # tokens of a prompt


class Scenario(Struct, frozen=True, kw_only=True):
    """`step_us` 0: the engine is as fast as it can. `caches`: a peer runs it with its tokenizer caches on. `parsers`: as detected."""

    name: str = ""
    about: str
    concurrency: int = 1
    prompt_tokens: int = SHORT
    out_tokens: int = 128
    mode: Literal["unique", "shared", "identical"] = "unique"
    turns: int = 1
    stream: bool = True
    step_us: int = 0
    caches: bool = False
    parsers: bool = False


KINDS = {
    "a": Scenario(about="stream, 128 tokens; the engine is as fast as it can"),
    "s": Scenario(about="as a, 16 tokens; a less s is what a token costs", out_tokens=16),
    "b": Scenario(about="as a, one whole answer", stream=False),
    "p": Scenario(about="as a, a token every 10 ms, as from a real engine", step_us=10_000),
    "t": Scenario(about="as a, with the model's reasoning and tool parsers", parsers=True),
    "c": Scenario(about="stream, 7.8k-token prompts, all different", prompt_tokens=LONG, out_tokens=16),
    "cs": Scenario(about="as c, the same but for the end", prompt_tokens=LONG, out_tokens=16, mode="shared", caches=True),
    "d": Scenario(about="as a, always the same prompt", mode="identical"),
    "dl": Scenario(about="as c, always the same prompt", prompt_tokens=LONG, out_tokens=16, mode="identical", caches=True),
}


def find(name: str) -> Scenario:
    """Gives the scenario of a name. Raises ValueError, naming the kinds there are."""
    kind = name.rstrip("0123456789")
    if kind not in KINDS or kind == name:
        raise ValueError(f"no scenario {name!r}: one of {', '.join(KINDS)} and a number of clients, as in a32")
    return msgspec.structs.replace(KINDS[kind], name=name, concurrency=int(name[len(kind) :]))
