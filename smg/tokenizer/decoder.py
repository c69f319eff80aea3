"""Incremental detokenization: token ids of one choice come in step by step, text goes out as soon as it is certain.

Linear: every token is looked at once. The joined text equals the reference library's decoding of all ids, U+FFFD included. Made by
`Tokenizer.decoder`; this is the specification of the native stream machine's first stage.
"""

import codecs
from collections.abc import Callable, Sequence

from smg.tokenizer.base import Decoder
from smg.tokenizer.pieces import Plan

__all__ = ["BytesDecoder", "TextDecoder", "WindowDecoder"]

# What a token gives: None when it is not shown.
Lookup = Callable[[int], str | bytes | None]

WINDOW_TOKENS = 16


class BytesDecoder(Decoder):
    """For byte-level vocabularies: tokens are bytes, held back while they may still become a character."""

    def __init__(self, lookup: Callable[[int], bytes | None]) -> None:
        self._lookup = lookup
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        lookup = self._lookup
        return self._utf8.decode(b"".join([piece for token_id in ids if (piece := lookup(token_id))]))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class TextDecoder(Decoder):
    """For vocabularies of text pieces, with byte tokens where the plan has fallback.

    A run of byte tokens is held back until another token ends it, for the reference decodes the run as a whole: one bad byte in it turns
    all of it into U+FFFD.
    """

    def __init__(self, plan: Plan, *, first: Lookup, other: Lookup) -> None:
        self._plan = plan
        self._first = first
        self._other = other
        self._started = False
        self._run = bytearray()
        self._run_is_first = False
        self._held = ""
        self._strip_character, self._strip_left = plan.strip

    def feed(self, ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token_id in ids:
            piece = self._other(token_id) if self._started else self._first(token_id)
            if piece is None:
                continue
            if isinstance(piece, bytes):
                self._run_is_first = self._run_is_first or not self._started
                self._run += piece
            else:
                if self._run:
                    parts.append(self._end_run())
                parts.append(self._suffixed(piece) if self._plan.suffix else piece)
            self._started = True
        return self._stripped("".join(parts)) if parts else ""

    def flush(self) -> str:
        text = self._end_run()
        if self._plan.suffix:
            text += self._held.replace(self._plan.suffix, "")
            self._held = ""
        return self._stripped(text)

    def _end_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        first, self._run_is_first = self._run_is_first, False
        if not run:
            return ""
        try:
            text = run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(run)
        return self._plan.finish(text, first=first)

    def _suffixed(self, piece: str) -> str:
        """The end-of-word mark is a space only when another token follows: one token is held back."""
        held, self._held = self._held, piece
        return held.replace(self._plan.suffix, " ")

    def _stripped(self, text: str) -> str:
        while text and self._strip_left:
            if not text.startswith(self._strip_character):
                self._strip_left = 0
                break
            text = text[len(self._strip_character) :]
            self._strip_left -= 1
        return text


class WindowDecoder(Decoder):
    """For decoders of an unknown kind: the library decodes a window of a few tokens again with each new one.

    Bounded work a token. The one decoder that may differ from the whole text's decoding, in a step that looks further than a window.
    Text that ends in U+FFFD is held back for at most WINDOW_TOKENS tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        return "".join([self._step(token_id) for token_id in ids])

    def flush(self) -> str:
        return self._emit() if self._pending else ""

    def _step(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        return "" if text.endswith("\ufffd") and len(self._pending) < WINDOW_TOKENS else self._emit()

    def _emit(self) -> str:
        known = self._decode(self._context) if self._context else ""
        text = self._decode(self._context + self._pending)
        self._context, self._pending = self._pending[-WINDOW_TOKENS:], []
        return text[len(known) :]
