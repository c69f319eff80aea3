"""The tokens that a script makes: script and prompt come in, one `TokenSource` a choice goes out, and log probabilities for any token.

All is a function of the script, the prompt, the choice's number and the seed. Called by the scheduler.
"""

import json
import zlib
from typing import cast

from smg.sim.model import SimModel
from smg.sim.script import MARKER, Script, ScriptError
from smg.sim.toolcall import write_tool_call
from smg.types.json import JsonObject

__all__ = ["Scores", "TokenSource", "plan_output", "score_token", "user_text"]

Scores = tuple[float, list[int], list[float]]  # log probability of the token; ids and values of the alternatives, best first
DEFAULT_ARGUMENTS: JsonObject = {"city": "Paris", "unit": "celsius"}
ROLES = ("user", "assistant", "system", "tool", "developer", "model", "human")
LONGEST_SCRIPTED_PROMPT = 20000


class TokenSource:
    """Gives a choice's tokens one by one. After the planned ids comes EOS; where EOS is not allowed the plan begins again."""

    __slots__ = ("_eos", "_fill", "_plan", "_tokens", "made")

    def __init__(self, plan: list[int], *, script: Script, eos: int, fill: int) -> None:
        self._plan = plan or [fill]
        self._tokens = (script.tokens or len(plan)) if script.eos else -1
        self._eos = eos
        self._fill = fill
        self.made = 0

    def next(self, *, eos_allowed: bool) -> int:
        """Gives the next token. `eos_allowed` False: min_tokens is not reached, or EOS is ignored."""
        position = self.made
        self.made += 1
        if 0 <= self._tokens <= position and eos_allowed:
            return self._eos
        return self._plan[position % len(self._plan)]


def plan_output(script: Script, *, prompt_ids: list[int], choice: int, model: SimModel) -> list[int]:
    """Gives the ids of a choice, without EOS. Choices after the first begin with their number in brackets."""
    head = f"<think>\n{script.think}\n</think>\n\n" if script.think else ""
    if choice:
        head += f"({choice}) "
    if script.output == "ids":
        return model.encode(head) + list(script.ids)
    if script.output == "text":
        return model.encode(head + script.text)
    if script.output == "tool":
        return model.encode(head + _tool_call(script))
    return model.encode(head) + _echo(prompt_ids, model=model)


def user_text(prompt_ids: list[int], *, model: SimModel) -> str:
    """Gives the text of the prompt's last user message, as far as it can be found between control tokens; else of the last message."""
    segments = _segments(prompt_ids, model=model)
    texts = [model.decode(segment) for segment in segments]
    return _content(texts[_user_segment(texts)]) if texts else ""


def score_token(token_id: int, *, position: int, count: int, vocab_size: int, seed: int) -> Scores:
    """Gives the token's log probability and `count` alternatives, the token itself being the best of them."""
    mixed = zlib.crc32(f"{seed}:{position}:{token_id}".encode())
    value = -0.001 - (mixed % 900) / 1000
    ids = [(token_id + rank * (1 + mixed % 97)) % vocab_size for rank in range(count)]
    return value, ids, [round(value - 0.75 * rank, 6) for rank in range(count)]


def _tool_call(script: Script) -> str:
    try:
        return write_tool_call(script.tool, arguments=_arguments(script.text), family=script.tool_format)
    except ValueError as error:
        raise ScriptError(str(error)) from error


def _arguments(text: str) -> JsonObject:
    if not text:
        return DEFAULT_ARGUMENTS
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ScriptError(f"tool arguments are not JSON: {text!r}") from error
    if not isinstance(value, dict):
        raise ScriptError("tool arguments must be an object")
    return cast(JsonObject, value)


def _echo(prompt_ids: list[int], *, model: SimModel) -> list[int]:
    """Gives the user's own ids, so that even odd tokenizations come back; text that held a marker or is cut inside a token is encoded."""
    segments = _segments(prompt_ids, model=model)
    texts = [model.decode(segment) for segment in segments]
    if not texts:
        return []
    index = _user_segment(texts)
    content = _content(texts[index])
    plain = MARKER.sub("", content).strip()
    if plain == content:
        for start in range(min(9, len(segments[index]))):
            if model.decode(segments[index][start:]) == plain:
                return segments[index][start:]
    return model.encode(plain)


def _segments(prompt_ids: list[int], *, model: SimModel) -> list[list[int]]:
    """Cuts the prompt's end at control tokens; gives the pieces between them."""
    pieces: list[list[int]] = [[]]
    for number in prompt_ids[-LONGEST_SCRIPTED_PROMPT:]:
        if number in model.special_ids:
            pieces.append([])
        else:
            pieces[-1].append(number)
    return [piece for piece in pieces if piece]


def _user_segment(texts: list[str]) -> int:
    """Finds the last piece that is a user's: `user\\n…`, or the piece after a bare `user`; else the last that says something."""
    for index in range(len(texts) - 1, -1, -1):
        role, _, rest = texts[index].lstrip().partition("\n")
        if role.strip() == "user":
            return index if rest.strip() or index + 1 == len(texts) else index + 1
    said = [index for index, text in enumerate(texts) if text.strip() and text.strip() not in ROLES]
    return said[-1] if said else len(texts) - 1


def _content(text: str) -> str:
    """Drops a role's name at the beginning."""
    role, found, rest = text.lstrip().partition("\n")
    return (rest if found and role.strip() in ROLES else text).strip()
