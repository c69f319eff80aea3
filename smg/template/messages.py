"""Brings a client's messages into the form that a template understands. In: messages as they came; out: new ones, the client's own are
not changed.

Called by `render.py`: `prepared` before every render, the `repairs` one after another when the template refuses or loses a message.
"""

import json
from collections.abc import Callable
from typing import NoReturn

from smg.errors import InvalidValue
from smg.template.content import Format, Formats
from smg.types.json import Json, JsonObject

__all__ = ["REPAIRS", "prepared", "text_of"]

MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "input_video": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
INSTRUCTIONS = ("system", "developer")


def prepared(messages: tuple[JsonObject, ...], *, formats: Formats) -> list[JsonObject]:
    """Gives the messages with content in the role's format and tool-call arguments as mappings; InvalidValue names the message at fault."""
    as_parts = "parts" in (formats.system, formats.user, formats.assistant, formats.tool)
    done: list[JsonObject] = []
    for i, message in enumerate(messages):
        if as_parts or not isinstance(message.get("content"), str) or message.get("tool_calls"):
            message = _message(message, formats.of(message.get("role")), at=f"messages[{i}]")
        done.append(message)
    return done


def _message(message: JsonObject, form: Format, *, at: str) -> JsonObject:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = _joined(content, at=at) if form == "string" else [_part(part) for part in content]
        message = {**message, "content": content}
    elif isinstance(content, str) and form == "parts":
        message = {**message, "content": [{"type": "text", "text": content}]}
    if isinstance(calls, list) and calls:
        message = {**message, "tool_calls": [_call(call, at=f"{at}.tool_calls[{i}]") for i, call in enumerate(calls)]}
    return message


def _joined(parts: list[Json], *, at: str) -> str:
    """Text parts as one string, a line each, as vLLM and SMG join them."""
    texts = []
    for i, part in enumerate(parts):
        text = _part_text(part)
        if text is None:
            raise InvalidValue("this model's chat template takes text only", param=f"{at}.content[{i}]")
        texts.append(text)
    return "\n".join(texts)


def _part_text(part: Json) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    text = part.get(TEXTS.get(str(part.get("type")), ""))
    return text if isinstance(text, str) else None


def _part(part: Json) -> Json:
    """One part as templates know it: media by its kind alone, every kind of text as `text`."""
    if not isinstance(part, dict):
        return {"type": "text", "text": part} if isinstance(part, str) else part
    kind = part.get("type")
    if kind in MEDIA:
        return {"type": MEDIA[str(kind)]}
    if kind in TEXTS and kind != "text":
        return {"type": "text", "text": _part_text(part)}
    return part


def _call(call: Json, *, at: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or "arguments" not in function:
        return call
    arguments = _arguments(function["arguments"], at=f"{at}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(value: Json, *, at: str) -> JsonObject:
    """The wire has a JSON text, templates iterate over a mapping (known-bugs B76, B77)."""
    if isinstance(value, dict):
        return value
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str):
        raise InvalidValue(f"{at} must be the JSON text of an object", param=at)
    try:
        parsed: Json = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{at} must be the JSON text of an object", param=at) from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise InvalidValue(f"{at} must be the JSON text of an object", param=at)
    return parsed


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def text_of(message: JsonObject) -> str:
    """Gives all text of a message's content, parts joined by lines; other parts are left out."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := _part_text(part)) is not None)
    return content if isinstance(content, str) else ""


def _empty_for_null(messages: list[JsonObject]) -> list[JsonObject]:
    """A call without words has `content: null` on the wire; templates that join texts want an empty one."""
    return [{**message, "content": ""} if message.get("content") is None else message for message in messages]


def _system_for_developer(messages: list[JsonObject]) -> list[JsonObject]:
    """`developer` is OpenAI's newer name of `system`; most templates know only the old one."""
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]


def _merged_into_head(messages: list[JsonObject]) -> list[JsonObject]:
    """All instructions as one system message at the head, for templates that take one and only there (known-bugs B78)."""
    texts = [text_of(message) for message in messages if message.get("role") in INSTRUCTIONS]
    if not texts:
        return messages
    rest = [message for message in messages if message.get("role") not in INSTRUCTIONS]
    return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *rest]


# Tried in this order, each on top of those before it, until the template takes the messages.
REPAIRS: tuple[Callable[[list[JsonObject]], list[JsonObject]], ...] = (_empty_for_null, _system_for_developer, _merged_into_head)
