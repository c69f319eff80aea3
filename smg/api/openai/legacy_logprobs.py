"""Logprobs in the shape of `/v1/completions`: parallel lists and offsets into the choice's text. Used by completion_pieces.py."""

import codecs
from collections.abc import Sequence

from msgspec import Struct

from smg.api.openai.answer import finite
from smg.types.event import TokenLogprob

__all__ = ["LegacyLogprobs", "OffsetCounter"]


class LegacyLogprobs(Struct, kw_only=True):
    """One entry a token in each list. `top_logprobs` maps a token's text to its value, and always holds the token itself."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def extend(self, other: "LegacyLogprobs") -> None:
        """Appends the entries of a later piece."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class OffsetCounter:
    """Counts characters of one choice's text, token by token; a token that starts inside a character has that character's offset."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0

    def prompt(self, entries: Sequence[TokenLogprob], text: str) -> LegacyLogprobs:
        """Gives the prompt's entries. A token that is not in the text, such as BOS, takes no room there."""
        data, at = text.encode(), 0
        lists = LegacyLogprobs()
        for entry in entries:
            _append(lists, entry, offset=self._position)
            if data.startswith(entry.token, at):
                at += len(entry.token)
                self._position += len(self._decoder.decode(entry.token))
        self.skip_to(len(text))
        return lists

    def skip_to(self, characters: int) -> None:
        """Sets the position, where text came without tokens."""
        self._decoder.reset()
        self._position = characters

    def tokens(self, entries: Sequence[TokenLogprob]) -> LegacyLogprobs:
        """Gives the entries of generated tokens."""
        lists = LegacyLogprobs()
        for entry in entries:
            _append(lists, entry, offset=self._position)
            self._position += len(self._decoder.decode(entry.token))
        return lists


def _append(lists: LegacyLogprobs, entry: TokenLogprob, *, offset: int) -> None:
    token = _text(entry.token)
    lists.tokens.append(token)
    lists.text_offset.append(offset)
    if entry.logprob is None:
        lists.token_logprobs.append(None)
        lists.top_logprobs.append(None)
        return
    lists.token_logprobs.append(finite(entry.logprob))
    top = {_text(other.token): finite(other.logprob) for other in entry.top}
    top.setdefault(token, finite(entry.logprob))
    lists.top_logprobs.append(top)


def _text(token: bytes) -> str:
    """Bytes that are no text are written as OpenAI does, so that two such tokens stay two keys."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
