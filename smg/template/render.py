"""Renders a conversation by a model's chat template. In: a `ChatInput`; out: the prompt's text and which spans of it are the client's look-alikes.

Called by the pipeline's prompt stage, off the event loop when the conversation is long. Everything here is synchronous and thread-safe.
"""

from collections.abc import Mapping
from datetime import datetime
from threading import Lock
from typing import Any

from msgspec import Struct

from smg.errors import ConfigError, InvalidValue, TemplateRefused
from smg.template.content import Formats, probe_formats
from smg.template.environment import CompiledTemplate, compile_template
from smg.template.messages import REPAIRS, prepared, text_of
from smg.template.prefill import cut_at_prefill, with_prefill_mark
from smg.tokenizer.base import Span
from smg.types.job import ChatInput
from smg.types.json import Json, JsonObject

__all__ = ["ChatTemplate", "Rendered"]

RESERVED = frozenset({"messages", "tools", "documents", "strftime_now", "raise_exception"})
THINKING_SWITCHES = ("enable_thinking", "thinking")
NO_EFFORT = ("none", "minimal")
CLIENT_TEMPLATES = 16  # compiled templates kept that came in requests


class Rendered(Struct, frozen=True, kw_only=True):
    """A prompt. `literals`: sorted spans of client text in which control tokens' names are ordinary text."""

    text: str
    literals: tuple[Span, ...] = ()


class _Template(Struct, frozen=True):
    compiled: CompiledTemplate
    formats: Formats


class ChatTemplate:
    """A model's templates by name. `source` is the text of the default one; `special_tokens` are variables such as `bos_token`."""

    def __init__(self, templates: Mapping[str, str], *, special_tokens: Mapping[str, str] | None = None) -> None:
        self._specials: JsonObject = dict(special_tokens or {})
        self._named = {name: self._compile(text) for name, text in templates.items()}
        if not self._named:
            raise ConfigError(["there is no chat template"])
        self._default = "default" if "default" in self._named else next(iter(self._named))
        self._client: dict[str, _Template] = {}
        self._lock = Lock()
        self.source = self._named[self._default].compiled.source

    def render(self, chat: ChatInput, *, now: datetime | None = None) -> Rendered:
        """Gives the prompt. Raises TemplateRefused with the template's words, InvalidValue for messages that no template could take."""
        template = self._chosen(chat)
        messages = prepared(chat.messages, formats=template.formats)
        variables = self._variables(chat, template.compiled)
        return Rendered(text=self._repaired(template.compiled, messages, chat, variables, now))

    def _repaired(
        self, template: CompiledTemplate, messages: list[JsonObject], chat: ChatInput, variables: dict[str, Any], now: datetime | None
    ) -> str:
        """Renders the messages as they are; a refusal, or a developer message that the template drops, is mended as far as REPAIRS can."""
        refusal: TemplateRefused | None = None
        text: str | None = None
        for repair in (None, *REPAIRS):
            mended = repair(messages) if repair else messages
            if repair and mended == messages:
                continue
            messages = mended
            try:
                text = self._rendered(template, messages, chat, variables, now)
            except TemplateRefused as error:
                refusal = refusal or error
                continue
            if not _loses_developer(messages, text):
                return text
        if text is not None:
            return text
        raise refusal or TemplateRefused("the chat template cannot render these messages", param="messages")

    def _rendered(
        self, template: CompiledTemplate, messages: list[JsonObject], chat: ChatInput, variables: dict[str, Any], now: datetime | None
    ) -> str:
        if not chat.continue_final_message:
            return template.render({**variables, "messages": messages}, now=now)
        marked, mark, last = with_prefill_mark(messages)
        return cut_at_prefill(template.render({**variables, "messages": marked}, now=now), mark, last)

    def _variables(self, chat: ChatInput, template: CompiledTemplate) -> dict[str, Any]:
        clash = RESERVED.intersection(chat.template_kwargs)
        if clash:
            raise InvalidValue(f"chat_template_kwargs cannot set {', '.join(sorted(clash))}", param="chat_template_kwargs")
        return {
            **self._specials,
            "tools": list(chat.tools) or None,
            "documents": list(chat.documents) or None,
            "add_generation_prompt": chat.add_generation_prompt and not chat.continue_final_message,
            **_thinking_switches(chat.template_kwargs, template.names),
            **chat.template_kwargs,
        }

    def _chosen(self, chat: ChatInput) -> _Template:
        name = chat.chat_template
        if name is None:
            if chat.tools and "tool_use" in self._named:
                return self._named["tool_use"]
            if chat.documents and "rag" in self._named and not chat.tools:
                return self._named["rag"]
            return self._named[self._default]
        return self._named[name] if name in self._named else self._from_client(name)

    def _from_client(self, source: str) -> _Template:
        with self._lock:
            template = self._client.get(source)
        if template is None:
            try:
                template = self._compile(source)
            except ConfigError as error:
                raise InvalidValue(error.message, param="chat_template") from error
            with self._lock:
                while len(self._client) >= CLIENT_TEMPLATES:
                    self._client.pop(next(iter(self._client)))
                self._client[source] = template
        return template

    def _compile(self, source: str) -> _Template:
        compiled = compile_template(source)
        return _Template(compiled, probe_formats(compiled, self._specials))


def _loses_developer(messages: list[JsonObject], text: str) -> bool:
    """Many templates skip roles that they do not know; instructions must not vanish without a word."""
    return any(message.get("role") == "developer" and text_of(message).strip() not in text for message in messages)


def _thinking_switches(kwargs: JsonObject, names: frozenset[str]) -> JsonObject:
    """`reasoning_effort: none` switches thinking off in templates that have a switch, unless the client sets the switch itself."""
    off: Json = kwargs.get("reasoning_effort")
    if off not in NO_EFFORT:
        return {}
    return {name: False for name in THINKING_SWITCHES if name in names}
