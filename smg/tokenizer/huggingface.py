"""Tokenizers of the Hugging Face `tokenizers` kind, be they read from a tokenizer.json or built from a tiktoken vocabulary."""

from collections.abc import Callable, Sequence
from threading import Lock

from tokenizers import Tokenizer as Library

from smg.tokenizer.base import Decoder, Span, Tokenizer
from smg.tokenizer.cache import PIECE_CHARACTERS, CacheCounts, PieceCache, cut_rule
from smg.tokenizer.decoder import BytesDecoder, TextDecoder, WindowDecoder
from smg.tokenizer.fast import FastEncoder
from smg.tokenizer.literal import LiteralEncoder
from smg.tokenizer.pieces import plan_of

__all__ = ["HuggingFaceTokenizer"]


class HuggingFaceTokenizer(Tokenizer):
    """Wraps a library tokenizer. `encode` goes through `encode_batch_fast`, which frees the GIL; the library's plain `encode` does not."""

    def __init__(
        self,
        library: Library,
        *,
        name: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: tuple[int, ...] = (),
        fast: FastEncoder | None = None,
        cache_bytes: int = 0,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._fast = fast
        self._added = library.get_added_tokens_decoder()
        vocabulary = library.get_vocab(with_added_tokens=True)
        self.name = name
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.longest_token = max((len(token.encode()) for token in vocabulary), default=1)
        self.bos_token = bos_token
        self.eos_token = eos_token
        own = library.token_to_id(eos_token) if eos_token else None
        self.eos_token_ids = tuple(sorted({*eos_token_ids, *([] if own is None else [own])}))
        self.special_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        decoder = library.decoder
        self._plan = plan_of(None if decoder is None else decoder.__getstate__())
        self._other: dict[int, str | bytes] = {}
        self._literal: LiteralEncoder | None = None
        self._lock = Lock()
        rule = cut_rule(library) if cache_bytes else None
        self._cache = PieceCache(self._encode, rule, limit=cache_bytes) if rule else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        if add_special_tokens:
            ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=True)[0].ids
            return ids
        if self._cache is not None and len(text) > PIECE_CHARACTERS:
            return self._cache.encode(text)
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        if self._fast is not None:
            return self._fast.encode(text)
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def cache_counts(self) -> CacheCounts | None:
        return self._cache.counts() if self._cache else None

    def encode_ordinary(self, text: str) -> list[int]:
        return self._literals().encode(text, literals=((0, len(text)),))

    def encode_literals(self, text: str, *, literals: Sequence[Span]) -> list[int]:
        return self._literals().encode(text, literals=literals) if literals else self.encode(text)

    @property
    def byte_level(self) -> bool:
        return self._plan.kind == "bytes"

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._library.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        if self._plan.kind == "unknown":
            return self.decode([token_id], skip_special_tokens=False).encode()
        piece = self._piece(token_id, False)
        return piece.encode() if isinstance(piece, str) else piece or b""

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._library.token_to_id(token)
        return token_id

    def decoder(self, *, skip_special_tokens: bool = True, keep: frozenset[int] = frozenset(), prompt_tail: Sequence[int] = ()) -> Decoder:
        hidden = self.special_ids - keep if skip_special_tokens else frozenset()
        decoder = self._bare_decoder(hidden)
        if prompt_tail:
            decoder.feed(prompt_tail)
        return decoder

    def _bare_decoder(self, hidden: frozenset[int]) -> Decoder:
        if self._plan.kind == "unknown":
            return WindowDecoder(lambda ids: self.decode([i for i in ids if i not in hidden], skip_special_tokens=False))
        shown = self._shown(hidden, first=False)
        if self._plan.kind == "bytes":
            return BytesDecoder(shown)  # type: ignore[arg-type]  # a plan of bytes gives no text
        return TextDecoder(self._plan, first=self._shown(hidden, first=True), other=shown)

    def _shown(self, hidden: frozenset[int], *, first: bool) -> Callable[[int], str | bytes | None]:
        known = self._other

        def shown(token_id: int) -> str | bytes | None:
            if token_id in hidden:
                return None
            piece = None if first else known.get(token_id)
            return self._piece(token_id, first) if piece is None else piece

        return shown

    def _piece(self, token_id: int, first: bool) -> str | bytes | None:
        """A token's part of the text; None for an id that the vocabulary does not have, which the reference leaves out."""
        if not first and (piece := self._other.get(token_id)) is not None:
            return piece
        name = self._library.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if name is None:
            return None
        piece = self._plan.piece(name, first=first)
        if not first:
            self._other[token_id] = piece
        return piece

    def _literals(self) -> LiteralEncoder:
        with self._lock:
            if self._literal is None:
                self._literal = LiteralEncoder(self._library)
            return self._literal
