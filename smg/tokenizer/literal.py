"""Encodes prompts in which some spans are a client's own words, so that a control token's name inside them is ordinary text.

Used by `HuggingFaceTokenizer.encode_literals`. The vocabulary is given a second face over the same model, in which each control token
goes by
an unguessable alias. The prompt's own marks are replaced by their aliases, a client's look-alikes stay as they are, and one call encodes
the whole:
every other rule of the tokenizer (normalization, splits at marks, prefix spaces) acts as it would on the original.
"""

import re
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer

from smg.tokenizer.base import Span
from smg.tokenizer.folder import AddedToken as TableEntry
from smg.tokenizer.marks import is_mark, pattern_of

__all__ = ["LiteralEncoder", "LiteralSegments"]


class LiteralEncoder:
    """The second face of one tokenizer. Thread-safe after construction."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._secret = f"\ue000{secrets.token_hex(16)}"
        self._face = Tokenizer(tokenizer.model)
        for part in ("normalizer", "pre_tokenizer"):
            value: Any = getattr(tokenizer, part)
            if value is not None:
                setattr(self._face, part, value)
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        marks = [(token_id, token) for token_id, token in added if token.special or is_mark(token.content)]
        kept = [token for _, token in added if not (token.special or is_mark(token.content))]
        self._face.add_tokens(kept)
        self._aliases = {token.content: f"{self._secret}{i:x}\ue001" for i, (_, token) in enumerate(marks)}
        self._face.add_special_tokens([_renamed(token, self._aliases[token.content]) for _, token in marks])
        self._ids = {self._face.token_to_id(self._aliases[token.content]): token_id for token_id, token in marks}
        for token in kept:
            own, real = self._face.token_to_id(token.content), tokenizer.token_to_id(token.content)
            if own is not None and real is not None:
                self._ids[own] = real
        self._pattern = re.compile(pattern_of(self._aliases)) if self._aliases else None

    def encode(self, text: str, *, literals: Sequence[Span]) -> list[int]:
        """Gives the ids of text; `literals` are sorted spans in which, or across whose ends, no mark is seen."""
        if self._secret in text:  # never by chance
            text = text.replace(self._secret, "")
        ids = self._face.encode_batch_fast([self._aliased(text, literals)], add_special_tokens=False)[0].ids
        known = self._ids
        return [known.get(token_id, token_id) for token_id in ids]

    def encode_packed(self, text: str, *, literals: Sequence[Span]) -> bytes:
        """The same, four bytes an id."""
        return array("I", self.encode(text, literals=literals)).tobytes()

    def _aliased(self, text: str, literals: Sequence[Span]) -> str:
        if self._pattern is None:
            return text
        parts: list[str] = []
        done = 0
        for start, end in _own_marks(self._pattern, text, literals):
            parts += (text[done:start], self._aliases[text[start:end]])
            done = end
        parts.append(text[done:])
        return "".join(parts)


class SegmentEncoder(Protocol):
    """What encodes texts one after the other, and sees added tokens only in those with True."""

    def encode_segments(self, segments: list[tuple[str, bool]]) -> list[int]:
        """Gives the ids."""

    def encode_segments_packed(self, segments: list[tuple[str, bool]]) -> bytes:
        """Gives the ids, four bytes each."""


class LiteralSegments:
    """The same by the quick encoder, which takes the text in pieces: between the prompt's own marks nothing is special.

    Only for vocabularies whose added tokens are all marks that take nothing beside them along; `fast.py` compares it with LiteralEncoder.
    """

    def __init__(self, encoder: SegmentEncoder, added: Iterable[TableEntry]) -> None:
        self._encoder = encoder
        names = [token.content for token in added]
        self._pattern = re.compile(pattern_of(names)) if names else None

    @staticmethod
    def possible(added: Iterable[TableEntry]) -> bool:
        """True when the vocabulary is of that kind."""
        return all(
            (t.special or is_mark(t.content)) and not (t.lstrip or t.rstrip or t.single_word or (t.normalized and not is_mark(t.content)))
            for t in added
        )

    def encode(self, text: str, *, literals: Sequence[Span]) -> list[int]:
        """Gives the ids of text; `literals` are sorted spans in which, or across whose ends, no mark is seen."""
        return self._encoder.encode_segments(self._segments(text, literals))

    def encode_packed(self, text: str, *, literals: Sequence[Span]) -> bytes:
        """The same, four bytes an id."""
        return self._encoder.encode_segments_packed(self._segments(text, literals))

    def _segments(self, text: str, literals: Sequence[Span]) -> list[tuple[str, bool]]:
        segments: list[tuple[str, bool]] = []
        done = 0
        for start, end in _own_marks(self._pattern, text, literals) if self._pattern else ():
            if start > done:
                segments.append((text[done:start], False))
            segments.append((text[start:end], True))
            done = end
        segments.append((text[done:], False))
        return segments


def _own_marks(pattern: re.Pattern[str], text: str, literals: Sequence[Span]) -> Iterator[Span]:
    """Where the marks stand that are the prompt's own: neither inside a literal span nor reaching into one."""
    position = span = 0
    while (match := pattern.search(text, position)) is not None:
        start, end = match.span()
        while span < len(literals) and literals[span][1] <= start:
            span += 1
        if span < len(literals) and literals[span][0] < end:
            position = start + 1
            continue
        yield start, end
        position = end


def _renamed(token: AddedToken, content: str) -> AddedToken:
    return AddedToken(content, single_word=token.single_word, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=True)
