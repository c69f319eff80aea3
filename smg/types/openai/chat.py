"""The request of `POST /v1/chat/completions`. `messages`, `tools` and `documents` stay the client's own objects: templates get them whole.

The message, part and tool structs are for checking those objects (`msgspec.convert`), not for keeping them.
"""

from typing import TypeAlias

from msgspec import Struct

from smg.types.openai.common import GenerationFields, RawObject

__all__ = [
    "AllowedTools",
    "AssistantMessage",
    "ChatRequest",
    "FunctionCallSpec",
    "FunctionMessage",
    "FunctionSpec",
    "Message",
    "Messages",
    "NamedFunction",
    "Part",
    "RefusalPart",
    "TextPart",
    "Tool",
    "ToolCallSpec",
    "ToolChoice",
]


class TextPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class RefusalPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal that the assistant gave earlier."""

    refusal: str


class ImagePart(Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """An image by URL or data URL."""


class AudioPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """Audio as base64."""


class AudioUrlPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="audio_url"):
    """Audio by URL; vLLM's own."""


class VideoPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="video_url"):
    """A video by URL; vLLM's and SGLang's own."""


class FilePart(Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file."""


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | AudioUrlPart | VideoPart | FilePart
PartContent: TypeAlias = str | list[Part]


class FunctionCallSpec(Struct, frozen=True, kw_only=True):
    """A call as the assistant made it earlier. OpenAI has `arguments` as JSON text; an object is taken too."""

    name: str
    arguments: str | RawObject | None = None


class ToolCallSpec(Struct, frozen=True, kw_only=True):
    """An entry of `tool_calls`."""

    id: str | None = None
    type: str = "function"
    function: FunctionCallSpec | None = None


class SystemMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: PartContent


class DeveloperMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions, in OpenAI's newer name."""

    content: PartContent


class UserMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """What the user says."""

    content: PartContent
    name: str | None = None


class AssistantMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """What the model said earlier."""

    content: PartContent | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: object = None
    tool_calls: list[ToolCallSpec] | None = None
    function_call: FunctionCallSpec | None = None
    audio: object = None
    name: str | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """The result of a call."""

    content: PartContent
    tool_call_id: str | None = None
    name: str | None = None


class FunctionMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="function"):
    """The result of a call, in the deprecated form."""

    name: str
    content: str | None = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Messages(Struct, frozen=True, kw_only=True):
    """All of them: msgspec knows a struct's fields once and for all, and would look at a bare union's members at every call."""

    messages: list[Message]


class FunctionSpec(Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, kw_only=True):
    """An entry of `tools`; `custom` tools are known and not built."""

    type: str = "function"
    function: FunctionSpec | None = None


class NamedFunction(Struct, frozen=True, kw_only=True):
    """The `function` of a named tool choice."""

    name: str


class AllowedTools(Struct, frozen=True, kw_only=True):
    """`tool_choice.allowed_tools`; `mode` is auto or required, `tools` are tool choices by name."""

    mode: str
    tools: list["ToolChoice"]


class ToolChoice(Struct, frozen=True, kw_only=True):
    """`tool_choice` as an object."""

    type: str = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """The whole body."""

    messages: list[RawObject]
    tools: list[RawObject] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[RawObject] | None = None
    function_call: str | NamedFunction | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    # the chat template, engines' own
    chat_template: str | None = None
    chat_template_kwargs: RawObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[RawObject] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
    # accepted without effect
    metadata: object = None
    prediction: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    safety_identifier: object = None
    service_tier: object = None
    store: object = None
    verbosity: object = None
    # not built
    audio: object = None
    echo: object = None
    modalities: list[str] | None = None
    moderation: object = None
    web_search_options: object = None
