"""continue_final_message: the prompt ends inside the last message, for the model to go on with. Used by `render.py`.

As transformers does it (`apply_chat_template`): a mark is put at the end of the last message and the prompt is cut there; where the
template
trims the message, the prompt ends with the trimmed text.
"""

import secrets

from smg.errors import InvalidValue, TemplateRefused
from smg.types.json import Json, JsonObject

__all__ = ["cut_at_prefill", "with_prefill_mark"]


def with_prefill_mark(messages: list[JsonObject]) -> tuple[list[JsonObject], str]:
    """Gives the messages with a mark in the last one, and the mark. InvalidValue when there is no text to go on with."""
    mark = f"PREFILL{secrets.token_hex(8)} "
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content + mark}], mark
    parts: list[Json] = list(content) if isinstance(content, list) else []
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            parts[i] = {**part, "text": text + mark}
            return [*messages[:-1], {**last, "content": parts}], mark
    raise InvalidValue("continue_final_message needs a last message with text", param="messages")


def cut_at_prefill(text: str, mark: str) -> str:
    """Gives the prompt up to the mark; TemplateRefused when the template leaves the last message out."""
    place = text.rfind(mark.strip())
    if place < 0:
        raise TemplateRefused("continue_final_message: the chat template leaves out the final message", param="continue_final_message")
    if text.startswith(mark, place):
        return text[:place]
    return text[:place].rstrip()
