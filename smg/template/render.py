"""Renders a conversation by a model's chat template. In: a `ChatInput`; out: the prompt's text and which spans of it are the client's
look-alikes.

Called by the pipeline's prompt stage, off the event loop when the conversation is long. Everything here is synchronous and thread-safe.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from threading import Lock
from typing import Any

from msgspec import Struct, structs

from smg.errors import ConfigError, InvalidValue, TemplateRefused
from smg.template.content import Formats, probe_formats
from smg.template.environment import CompiledTemplate, compile_template
from smg.template.guard import Budget, current
from smg.template.literals import Sources, literal_spans
from smg.template.marks import MarkFinder
from smg.template.messages import REPAIRS, prepared, text_of
from smg.template.prefill import cut_at_prefill, with_prefill_mark
from smg.tokenizer.base import Span
from smg.tokenizer.folder import AddedToken
from smg.types.job import ChatInput
from smg.types.json import Json, JsonObject

__all__ = ["ChatTemplate", "Rendered"]

RESERVED = frozenset({"messages", "tools", "documents", "strftime_now", "raise_exception"})
THINKING_SWITCHES = ("enable_thinking", "thinking")
NO_EFFORT = ("none", "minimal")
CLIENT_TEMPLATES = 16  # compiled templates kept that came in requests
CLIENT_CHARACTERS = 1 << 15  # of one of them: to compile so many takes up to 1.5 s; the longest of known models has 19,000


class Rendered(Struct, frozen=True, kw_only=True):
    """A prompt. `literals`: sorted spans of client text in which control tokens' names are ordinary text."""

    text: str
    literals: tuple[Span, ...] = ()


class _Template(Struct, frozen=True):
    compiled: CompiledTemplate
    formats: Formats
    finder: MarkFinder


class ChatTemplate:
    """A model's templates by name. `source` is the text of the default one.

    special_tokens  variables such as `bos_token` that templates use
    added_tokens    the vocabulary's table, from which the control tokens are known
    trust_client    take the text of a template from a request; without it only the names of the templates here
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        added_tokens: Iterable[AddedToken] = (),
        trust_client: bool = False,
    ) -> None:
        self._specials: JsonObject = dict(special_tokens or {})
        self._added = tuple(added_tokens)
        self._named = {name: self._compile(text) for name, text in templates.items()}
        if not self._named:
            raise ConfigError(["there is no chat template"])
        self._default = "default" if "default" in self._named else next(iter(self._named))
        self._trust_client = trust_client
        self._client: dict[str, _Template] = {}
        self._lock = Lock()
        self.source = self._named[self._default].compiled.source

    def render(self, chat: ChatInput, *, now: datetime | None = None) -> Rendered:
        """Gives the prompt. Raises TemplateRefused with the template's words, InvalidValue for messages that no template could take."""
        kwargs = chat.template_kwargs
        if kwargs and (clash := RESERVED.intersection(kwargs)):
            raise InvalidValue(f"chat_template_kwargs cannot set {', '.join(sorted(clash))}", param="chat_template_kwargs")
        with Budget() as budget:  # one for all renders, repairs and searches of this request
            return self._render(chat, now or datetime.now(), budget)  # one time for all of them, too

    def _render(self, chat: ChatInput, now: datetime, budget: Budget) -> Rendered:
        template = self._chosen(chat)
        sources = Sources(
            messages=prepared(chat.messages, formats=template.formats),
            tools=list(chat.tools) or None,
            documents=list(chat.documents) or None,
            kwargs=chat.template_kwargs,
        )
        text, sources = self._repaired(template.compiled, sources, chat, now, budget)
        if not sources.touched(template.finder):
            return Rendered(text=text)

        def again(other: Sources) -> str | None:
            try:
                return self._text(template.compiled, other, chat, now, budget)
            except (TemplateRefused, InvalidValue):
                return None

        return Rendered(text=text, literals=literal_spans(text, sources, finder=template.finder, render=again))

    def render_exactly(self, chat: ChatInput, *, now: datetime | None = None) -> str:
        """Gives what transformers gives: messages as they are, nothing mended, its refusals refused. For comparison, not for requests."""
        sources = Sources(
            messages=list(chat.messages),
            tools=list(chat.tools) or None,
            documents=list(chat.documents) or None,
            kwargs=chat.template_kwargs,
        )
        return self._text(self._chosen(chat).compiled, sources, chat, now or datetime.now())

    def _repaired(
        self, template: CompiledTemplate, sources: Sources, chat: ChatInput, now: datetime, budget: Budget
    ) -> tuple[str, Sources]:
        """Renders the messages as they are; a refusal, or a developer message that the template drops, is mended as far as REPAIRS can."""
        refusal: TemplateRefused | None = None
        best: tuple[str, Sources] | None = None
        for repair in (None, *REPAIRS):
            mended = repair(sources.messages) if repair else sources.messages
            if repair and mended == sources.messages:
                continue
            if repair:
                sources = structs.replace(sources, messages=mended)
            try:
                text = self._text(template, sources, chat, now, budget)
            except TemplateRefused as error:
                refusal = refusal or error
                continue
            if not _loses_developer(mended, text):
                return text, sources
            best = best or (text, sources)
        if best is not None:
            return best
        raise refusal or TemplateRefused("the chat template cannot render these messages", param="messages")

    def _text(self, template: CompiledTemplate, sources: Sources, chat: ChatInput, now: datetime, budget: Budget | None = None) -> str:
        messages, mark = (sources.messages, "") if not chat.continue_final_message else with_prefill_mark(sources.messages)
        variables: dict[str, Any] = {
            **self._specials,
            "messages": messages,
            "tools": sources.tools,
            "documents": sources.documents,
            "add_generation_prompt": chat.add_generation_prompt and not mark,
        }
        if sources.kwargs:
            variables.update(_thinking_switches(sources.kwargs, template.names))
            variables.update(sources.kwargs)
        text = template.render(variables, now=now, budget=budget)
        return cut_at_prefill(text, mark) if mark else text

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
        if not self._trust_client:
            raise InvalidValue(
                "chat_template: this server takes no template text from requests (--trust-request-chat-template is off); "
                f"the model's own templates can be named: {', '.join(self._named)}",
                param="chat_template",
            )
        if len(source) > CLIENT_CHARACTERS:
            raise InvalidValue(f"chat_template is longer than {CLIENT_CHARACTERS} characters", param="chat_template")
        with self._lock:
            template = self._client.get(source)
        if template is None:
            if (budget := current()) is not None:
                budget.look()  # its clock starts: compiling and probing are work, too
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
        return _Template(compiled, probe_formats(compiled, self._specials), MarkFinder(self._added, source=source))


def _loses_developer(messages: list[JsonObject], text: str) -> bool:
    """Many templates skip roles that they do not know; instructions must not vanish without a word."""
    for message in messages:  # noqa: SIM110  # a generator costs more than the search
        if message.get("role") == "developer" and text_of(message).strip() not in text:
            return True
    return False


def _thinking_switches(kwargs: JsonObject, names: frozenset[str]) -> JsonObject:
    """`reasoning_effort: none` switches thinking off in templates that have a switch, unless the client sets the switch itself."""
    off: Json = kwargs.get("reasoning_effort")
    if off not in NO_EFFORT:
        return {}
    return {name: False for name in THINKING_SWITCHES if name in names}
