"""Events → one whole chat completion. Fed the same events as the stream, so that both tell the same. Made by chat.py, one a request."""

from collections.abc import Sequence

import msgspec

from smg.api.openai.answer import Head, chat_logprobs, usage_json
from smg.api.openai.chat_switches import Switches
from smg.types.event import Content, Event, Finished, Reasoning, TokenLogprob, ToolArguments, ToolCall, Usage

__all__ = ["ChatWhole"]

# With twenty alternatives each takes some twenty microseconds.
INLINE_SCORES = 256

encode = msgspec.json.encode


class _Call:
    """A tool call as it grows."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.arguments: list[str] = []

    def function(self) -> dict[str, object]:
        return {"name": self.name, "arguments": "".join(self.arguments)}

    def fields(self) -> dict[str, object]:
        return {"id": self.id, "type": "function", "function": self.function()}


class _Choice:
    """A choice as it grows."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, _Call] = {}
        self.scores: list[TokenLogprob] = []
        self.finish: Finished | None = None
        self.reason: str | None = None

    def message(self, *, legacy: bool) -> dict[str, object]:
        content = "".join(self.content)
        message: dict[str, object] = {"role": "assistant", "content": content if content or not self.calls else None, "refusal": None}
        if reasoning := "".join(self.reasoning):
            message["reasoning_content"] = reasoning
        if self.calls and legacy:
            message["function_call"] = self.calls[0].function()
        elif self.calls:
            message["tool_calls"] = [call.fields() for call in self.calls.values()]
        return message


class ChatWhole:
    """Collects what `ChatStream` would send."""

    def __init__(self, head: Head, switches: Switches) -> None:
        self._head = head
        self._switches = switches
        self._choices: list[_Choice] = []  # made when events come: most answers come as JSON
        self._usage: Usage | None = None
        self._choice_json = b""

    @property
    def is_large(self) -> bool:
        """True when `body` takes so long that it should not hold the event loop up: each token's scores are objects to be made."""
        return sum(len(choice.scores) for choice in self._choices) > INLINE_SCORES

    def feed(self, events: Sequence[Event]) -> None:
        """Takes the next events. Raises EngineError for an aborted choice."""
        self._choices = self._choices or [_Choice() for _ in range(self._switches.choices)]
        for event in events:
            self._take(event)

    def take(self, choice: bytes, usage: Usage) -> None:
        """Takes the one choice of an answer as JSON."""
        self._choice_json = choice
        self._usage = usage

    def body(self) -> bytes:
        """Gives the response body."""
        choices = self._choice_json or b",".join([self._choice(i, choice) for i, choice in enumerate(self._choices)])
        usage = usage_json(self._usage) if self._usage else b"null"
        return self._head.prefix() + b',"choices":[%b],"usage":%b}' % (choices, usage)

    def _take(self, event: Event) -> None:
        match event:
            case Content(choice, text, scores):
                self._choices[choice].content.append(text)
                self._choices[choice].scores += scores
            case Reasoning(choice, text, scores):
                if self._switches.reasoning:
                    self._choices[choice].reasoning.append(text)
                    self._choices[choice].scores += scores
            case ToolCall(choice, index, call_id, name, scores):
                self._choices[choice].calls[index] = _Call(call_id, name)
                self._choices[choice].scores += scores
            case ToolArguments(choice, index, text, scores):
                self._choices[choice].calls[index].arguments.append(text)
                self._choices[choice].scores += scores
            case Finished():
                self._choices[event.choice].finish = event
                self._choices[event.choice].reason = self._switches.reason(event.reason)
            case Usage():
                self._usage = event

    def _choice(self, index: int, choice: _Choice) -> bytes:
        finish = choice.finish
        scores = {"content": chat_logprobs(choice.scores), "refusal": None} if self._switches.logprobs else None
        matched = b""
        if finish and finish.matched_stop is not None:
            matched = b',"matched_stop":' + encode(finish.matched_stop)
        message = encode(choice.message(legacy=self._switches.legacy))
        body = b'{"index":%d,"message":%b,"logprobs":%b,"finish_reason":%b%b}'
        return body % (index, message, encode(scores), encode(choice.reason), matched)
