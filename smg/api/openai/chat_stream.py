"""Events → chunks of a streamed chat completion. Made and fed by chat.py, one a request."""

from collections.abc import Sequence

import msgspec

from smg.api.openai.answer import Head, chat_logprobs, finish_reason, usage_fields
from smg.api.sse import DONE
from smg.types.event import Content, Event, Finished, Reasoning, TokenLogprob, ToolArguments, ToolCall, Usage

__all__ = ["ChatStream"]

encode = msgspec.json.encode


class ChatStream:
    """The bytes of all events of one list are one write. `named_choice`: the client named the function, so its call ends with `stop`."""

    def __init__(self, head: Head, *, choices: int, usage: bool, logprobs: bool, reasoning: bool, named_choice: bool) -> None:
        self._prefix = b"data: " + head.prefix()
        self._tail = b',"usage":null}\n\n' if usage else b"}\n\n"
        self._choices = choices
        self._usage = usage
        self._logprobs = logprobs
        self._reasoning = reasoning
        self._named_choice = named_choice
        self._opened = False

    def feed(self, events: Sequence[Event]) -> bytes:
        """Gives the chunks for these events; empty when they say nothing to the client. Raises EngineError for an aborted choice."""
        parts = [part for event in events if (part := self._chunk(event))]
        if parts and not self._opened:
            self._opened = True
            parts[:0] = [self._delta(i, b'{"role":"assistant","content":""}', ()) for i in range(self._choices)]
        return b"".join(parts)

    def end(self) -> bytes:
        """Gives what closes a stream that went well."""
        return DONE

    def _chunk(self, event: Event) -> bytes:
        match event:
            case Content(choice, text, scores):
                return self._delta(choice, b'{"content":%b}' % encode(text), scores) if text or scores else b""
            case Reasoning(choice, text, scores):
                if not self._reasoning or not (text or scores):
                    return b""
                return self._delta(choice, b'{"reasoning_content":%b}' % encode(text) if text else b"{}", scores)
            case ToolCall(choice, index, call_id, name, scores):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._delta(choice, encode({"tool_calls": [call]}), scores)
            case ToolArguments(choice, index, text, scores):
                if not text and not scores:
                    return b""
                return self._delta(choice, b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, encode(text)), scores)
            case Finished():
                return self._finish(event)
            case Usage():
                return self._usage_chunk(event)
            case _:
                return b""

    def _delta(self, choice: int, delta: bytes, scores: Sequence[TokenLogprob]) -> bytes:
        logprobs = b"null"
        if self._logprobs and scores:
            logprobs = b'{"content":%b,"refusal":null}' % encode(chat_logprobs(scores))
        body = b',"choices":[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}]' % (choice, delta, logprobs)
        return self._prefix + body + self._tail

    def _finish(self, event: Finished) -> bytes:
        reason = finish_reason(event.reason)
        if self._named_choice and reason == "tool_calls":
            reason = "stop"
        matched = b"" if event.matched_stop is None else b',"matched_stop":' + encode(event.matched_stop)
        body = b',"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b%b}]' % (event.choice, encode(reason), matched)
        return self._prefix + body + self._tail

    def _usage_chunk(self, usage: Usage) -> bytes:
        if not self._usage:
            return b""
        return self._prefix + b',"choices":[],"usage":%b}\n\n' % encode(usage_fields(usage))
