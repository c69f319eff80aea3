"""Builds a call's arguments, one JSON object, from values that come as plain text: strings escaped as they come, others when complete."""

import json

from smg.parser.sink import Sink
from smg.parser.tool.grammar.schema import STRING, as_json
from smg.parser.tool.grammar.value import quoted

__all__ = ["TypedArguments", "TypedValue"]

MAYBE_TEXT = frozenset({"string", "null"})
NULL_MAX = 16  # a longer text is not the word null, whatever white space it has


class TypedValue:
    """One value: any number of `add`, then `end`. `kinds`: the JSON types that it may have. `trim`: one newline at each end is layout."""

    def __init__(self, sink: Sink, kinds: frozenset[str], *, trim: bool = False) -> None:
        self._sink = sink
        self._kinds = kinds
        self._trim = trim
        self._streams = False
        self._parts: list[str] = []
        self._size = 0
        self._held = ""  # a newline that may be the last character
        self._fresh = trim
        if kinds == STRING:
            self._stream()

    def _stream(self) -> None:
        self._streams = True
        self._sink.arguments('"')
        parts, self._parts = self._parts, []
        for part in parts:
            self._sink.arguments(quoted(part))

    def add(self, text: str) -> None:
        """More of the value."""
        if not text:
            return
        if self._fresh:
            self._fresh = False
            text = text[1:] if text[0] == "\n" else text
        text = self._held + text
        self._held = ""
        if self._trim and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        self._pass(text)

    def _pass(self, text: str) -> None:
        if self._streams:
            self._sink.arguments(quoted(text))
            return
        self._parts.append(text)
        self._size += len(text)
        if self._kinds == MAYBE_TEXT:
            word = "" if self._size > NULL_MAX else "".join(self._parts).strip().lower()
            if self._size > NULL_MAX or not ("null".startswith(word) or "none".startswith(word)):
                self._stream()

    def end(self) -> None:
        """The value is complete."""
        if self._streams:
            self._sink.arguments('"')
        else:
            self._sink.arguments(as_json("".join(self._parts), self._kinds))

    def cut(self) -> None:
        """The output ended inside the value: what came is passed on, without an end."""
        if self._streams:
            self._sink.arguments(quoted(self._held))
        else:
            self._sink.arguments("".join(self._parts) + self._held)


class TypedArguments:
    """One call. For each parameter `begin`, any number of `add`, `end`; then `close`. `trim`: see TypedValue."""

    def __init__(self, sink: Sink, *, trim: bool) -> None:
        self._sink = sink
        self._trim = trim
        self._first = True

    def begin(self, key: str, kinds: frozenset[str]) -> None:
        """A parameter's value begins."""
        self._sink.arguments(f"{'{' if self._first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
        self._first = False
        self._value = TypedValue(self._sink, kinds, trim=self._trim)

    def add(self, text: str) -> None:
        """More of the value."""
        self._value.add(text)

    def end(self) -> None:
        """The value is complete."""
        self._value.end()

    def cut(self) -> None:
        """The output ended inside the value: what came is passed on, without an end."""
        self._value.cut()

    def close(self) -> None:
        """The call is complete."""
        self._sink.arguments("{}" if self._first else "}")
