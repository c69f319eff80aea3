"""Events → chunks of a streamed chat completion. Made and fed by chat.py, one a request."""

from collections.abc import Sequence

import msgspec

from smg.api.openai.answer import Head, chat_logprobs, usage_json
from smg.api.openai.chat_switches import Switches
from smg.api.sse import DONE
from smg.pipeline import ChatFrame
from smg.types.event import Content, Event, Finished, Reasoning, TokenLogprob, ToolArguments, ToolCall, Usage

__all__ = ["ChatStream"]

encode = msgspec.json.encode


class ChatStream:
    """The bytes of all events of one list are one write."""

    def __init__(self, head: Head, switches: Switches) -> None:
        self._prefix = b"data: " + head.prefix()
        self._tail = b',"usage":null}\n\n' if switches.usage else b"}\n\n"
        self._switches = switches
        self._opened = False

    def feed(self, events: Sequence[Event]) -> bytes:
        """Gives the chunks for these events; empty when they say nothing to the client. Raises EngineError for an aborted choice."""
        parts = [part for event in events if (part := self._chunk(event))]
        if parts and not self._opened:
            self._opened = True
            parts[:0] = [self._delta(i, b'{"role":"assistant","content":""}', ()) for i in range(self._switches.choices)]
        return b"".join(parts)

    @property
    def frame(self) -> ChatFrame:
        """What the native way needs to write the same chunks."""
        return ChatFrame(prefix=self._prefix, tail=self._tail, hide_thoughts=not self._switches.reasoning)

    def usage(self, usage: Usage) -> bytes:
        """Gives the chunk with the usage; empty when it was not asked for."""
        if not self._switches.usage:
            return b""
        return self._prefix + b',"choices":[],"usage":%b}\n\n' % usage_json(usage)

    def end(self) -> bytes:
        """Gives what closes a stream that went well."""
        return DONE

    def _chunk(self, event: Event) -> bytes:
        match event:
            case Content(choice, text, scores):
                return self._delta(choice, b'{"content":%b}' % encode(text), scores) if text or scores else b""
            case Reasoning(choice, text, scores):
                if not self._switches.reasoning or not (text or scores):
                    return b""
                return self._delta(choice, b'{"reasoning_content":%b}' % encode(text) if text else b"{}", scores)
            case ToolCall(choice, index, call_id, name, scores):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._call(choice, index, {"tool_calls": [call]}, {"function_call": function}, scores)
            case ToolArguments(choice, index, text, scores):
                if not text and not scores:
                    return b""
                function = {"arguments": text}
                return self._call(
                    choice, index, {"tool_calls": [{"index": index, "function": function}]}, {"function_call": function}, scores
                )
            case Finished():
                return self._finish(event)
            case Usage():
                return self.usage(event)
            case _:
                return b""

    def _call(self, choice: int, index: int, call: object, legacy_call: object, scores: Sequence[TokenLogprob]) -> bytes:
        if not self._switches.legacy:
            return self._delta(choice, encode(call), scores)
        return self._delta(choice, encode(legacy_call), scores) if index == 0 else b""

    def _delta(self, choice: int, delta: bytes, scores: Sequence[TokenLogprob]) -> bytes:
        logprobs = b"null"
        if self._switches.logprobs and scores:
            logprobs = b'{"content":%b,"refusal":null}' % encode(chat_logprobs(scores))
        body = b',"choices":[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}]' % (choice, delta, logprobs)
        return self._prefix + body + self._tail

    def _finish(self, event: Finished) -> bytes:
        reason = self._switches.reason(event.reason)
        matched = b"" if event.matched_stop is None else b',"matched_stop":' + encode(event.matched_stop)
        body = b',"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b%b}]' % (event.choice, encode(reason), matched)
        return self._prefix + body + self._tail
