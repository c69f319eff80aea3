"""Checks a client's messages. They stay as they are: the template sees the client's own objects. Called by chat.py and tokenize.py."""

import msgspec

from smg.api.decode import check_depth, convert
from smg.errors import InvalidValue, Unimplemented
from smg.types.json import JsonObject
from smg.types.openai.chat import (
    AssistantMessage,
    FunctionCallSpec,
    FunctionMessage,
    Message,
    Messages,
    RefusalPart,
    TextPart,
    ToolCallSpec,
)

__all__ = ["checked_messages"]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PLAIN = ROLES[:4]
MAX_MESSAGES = 1 << 15
PARTS = ("text", "refusal", "image_url", "input_audio", "audio_url", "video_url", "file")


def checked_messages(messages: list[dict[str, object]], *, body: bytes = b"") -> tuple[JsonObject, ...]:
    """Gives the messages back. Raises InvalidValue with the place of the fault, Unimplemented for parts that are not text.

    `body`: where they come from, if nobody has seen yet that nothing in it is nested too deeply.
    """
    if not messages:
        raise InvalidValue("messages must not be empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidValue(f"messages may have at most {MAX_MESSAGES} entries, not {len(messages)}", param="messages")
    odd = []
    for i, message in enumerate(messages):  # a role and a text and nothing else: most messages, and nothing in them needs a look
        if len(message) != 2 or type(message.get("content")) is not str or message.get("role") not in PLAIN:
            odd.append(i)
    if odd:
        check_depth(messages, body=body, at="the body")
        for i in odd:
            _check_names(messages[i], at=f"messages[{i}]")
        for i, typed in zip(odd, _typed(messages, odd), strict=True):
            _check_message(typed, at=f"messages[{i}]")
    return tuple(messages)  # type: ignore[arg-type]  # JSON, as it was decoded


def _typed(messages: list[dict[str, object]], odd: list[int]) -> list[Message]:
    try:
        return convert({"messages": [messages[i] for i in odd]}, Messages).messages
    except InvalidValue:  # the place that is told has to be the client's
        return convert({"messages": messages}, Messages).messages


def _check_names(raw: dict[str, object], *, at: str) -> None:
    """The two unions, told in our words before msgspec tells them in its own."""
    role = raw.get("role")
    if role is not None and role not in ROLES:
        raise InvalidValue(f"{at}.role must be one of {', '.join(ROLES)}", param=f"{at}.role")
    content = raw.get("content")
    for i, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") not in PARTS:
            raise InvalidValue(f"{at}.content[{i}].type must be one of {', '.join(PARTS)}", param=f"{at}.content[{i}].type")


def _check_message(message: Message, *, at: str) -> None:
    if not isinstance(message, FunctionMessage) and isinstance(message.content, list):
        for i, part in enumerate(message.content):
            if not isinstance(part, TextPart | RefusalPart):
                kind = part.__struct_config__.tag
                raise Unimplemented(f"{at}.content[{i}]: parts of type {kind} are not supported yet", param=f"{at}.content[{i}]")
    if isinstance(message, AssistantMessage):
        if message.audio is not None:
            raise Unimplemented(f"{at}.audio is not supported: audio is not built", param=f"{at}.audio")
        for i, call in enumerate(message.tool_calls or ()):
            _check_call(call, at=f"{at}.tool_calls[{i}]")
        if message.function_call is not None:
            _check_arguments(message.function_call, at=f"{at}.function_call")


def _check_call(call: ToolCallSpec, *, at: str) -> None:
    if call.type == "custom":
        raise Unimplemented(f"{at}: custom tools are not supported", param=at)
    if call.function is None:
        raise InvalidValue(f"{at}.function is required", param=f"{at}.function")
    _check_arguments(call.function, at=f"{at}.function")


def _check_arguments(call: FunctionCallSpec, *, at: str) -> None:
    """Templates iterate over arguments, so text that is not an object would fail there without a place."""
    if not isinstance(call.arguments, str) or call.arguments.strip() in ("", "null"):
        return  # the template is given an empty object (known-bugs B77)
    at = f"{at}.arguments"
    try:
        msgspec.json.decode(call.arguments, type=dict)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidValue(f"{at} must be the JSON text of an object", param=at) from error
