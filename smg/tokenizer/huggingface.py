"""Tokenizers of the Hugging Face `tokenizers` kind, be they read from a tokenizer.json or built from a tiktoken vocabulary."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from tokenizers import Tokenizer as Library

from smg.tokenizer.base import Decoder, Span, Tokenizer
from smg.tokenizer.cache import PIECE_CHARACTERS, CacheCounts, PieceCache, cut_rule
from smg.tokenizer.decoder import BytesDecoder, TextDecoder, WindowDecoder
from smg.tokenizer.facts import Facts, facts_of
from smg.tokenizer.foreign import ForeignEncoder
from smg.tokenizer.literal import LiteralEncoder, LiteralSegments
from smg.tokenizer.native import NativeEncoder
from smg.tokenizer.pieces import plan_of

__all__ = ["HuggingFaceTokenizer"]


class HuggingFaceTokenizer(Tokenizer):
    """A vocabulary as the reference library reads it. Where a quick encoder stands in for the library, that is loaded only when needed.

    The library's `encode_batch_fast` frees the GIL; its plain `encode` does not and is never called.
    """

    def __init__(
        self,
        library: Library | Callable[[], Library],
        *,
        name: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: tuple[int, ...] = (),
        facts: Facts | None = None,
        fast: NativeEncoder | ForeignEncoder | None = None,
        cache_bytes: int = 0,
    ) -> None:
        self._open = library
        self._lock = Lock()
        self._loaded: Library | None = None
        facts = facts or facts_of(self._library)
        self._fast = fast
        self._frame = facts.frame
        self._names: Callable[[int], str | None] = fast.name if fast else self._library.id_to_token
        self.name = name
        self.vocab_size = facts.vocab_size
        self.longest_token = facts.longest_token
        self.bos_token = bos_token
        self.eos_token = eos_token
        own = self.token_id(eos_token) if eos_token else None
        self.eos_token_ids = tuple(sorted({*eos_token_ids, *([] if own is None else [own])}))
        self.special_ids = frozenset(token.id for token in facts.added if token.special)
        self._plan = plan_of(None if facts.decoder is None else facts.decoder.encode())
        self._other: dict[int, str | bytes] = {}
        self._literal: LiteralEncoder | LiteralSegments | None = None
        if fast and facts.literal:
            self._literal = LiteralSegments(fast, facts.added)
        self._cache: PieceCache | NativeEncoder | ForeignEncoder | None = None
        self._encode: Callable[[str], list[int]] = fast.encode if fast else self._encode_slowly
        if fast and cache_bytes:
            fast.remember(cache_bytes)
            self._cache = fast
        elif cache_bytes and (rule := cut_rule(self._library)):
            self._cache = PieceCache(self._encode_slowly, rule, limit=cache_bytes)
            self._encode = self._encode_in_pieces

    @property
    def _library(self) -> Library:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._open() if callable(self._open) else self._open
                self._loaded.no_truncation()
                self._loaded.no_padding()
            return self._loaded

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        if not add_special_tokens:
            return self._encode(text)
        if self._frame is None:
            whole: list[int] = self._library.encode_batch_fast([text], add_special_tokens=True)[0].ids
            return whole
        begin, end = self._frame
        ids = self._encode(text)
        return [*begin, *ids, *end] if begin or end else ids

    def encode_packed(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        if self._fast is None or (add_special_tokens and self._frame is None):
            return super().encode_packed(text, add_special_tokens=add_special_tokens)
        packed = self._fast.encode_packed(text)
        if not add_special_tokens or self._frame == ((), ()):
            return packed
        begin, end = [array("I", ids).tobytes() for ids in self._frame or ((), ())]
        return begin + packed + end

    def _encode_slowly(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _encode_in_pieces(self, text: str) -> list[int]:
        assert isinstance(self._cache, PieceCache)
        return self._cache.encode(text) if len(text) > PIECE_CHARACTERS else self._encode_slowly(text)

    def cache_counts(self) -> CacheCounts | None:
        if isinstance(self._cache, PieceCache):
            return self._cache.counts()
        return self._cache.cache_counts() if self._cache else None

    def encode_ordinary(self, text: str) -> list[int]:
        return self._literals().encode(text, literals=((0, len(text)),))

    def encode_literals(self, text: str, *, literals: Sequence[Span]) -> list[int]:
        return self._literals().encode(text, literals=literals) if literals else self._encode(text)

    def encode_literals_packed(self, text: str, *, literals: Sequence[Span]) -> bytes:
        return self._literals().encode_packed(text, literals=literals) if literals else self.encode_packed(text)

    @property
    def byte_level(self) -> bool:
        return self._plan.kind == "bytes"

    @property
    def joined_text(self) -> tuple[str, int] | None:
        plan = self._plan
        if plan.kind != "text" or plan.placed or plan.after or plan.suffix:
            return None
        return plan.strip if not plan.strip[1] or (len(plan.strip[0]) == 1 and plan.strip[0].isascii()) else None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self._plan.kind == "unknown":
            text: str = self._library.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text
        decoder = self.decoder(skip_special_tokens=skip_special_tokens)
        return decoder.feed(ids) + decoder.flush()

    def token_bytes(self, token_id: int) -> bytes:
        if self._plan.kind == "unknown":
            return self.decode([token_id], skip_special_tokens=False).encode()
        piece = self._piece(token_id, False)
        return piece.encode() if isinstance(piece, str) else piece or b""

    def pieces(self) -> Iterator[str | bytes | None]:
        name_of, piece_of = self._names, self._plan.piece
        known = self._fast.token_bytes if self._fast and self._plan.kind == "bytes" and not self._plan.before else None
        for token_id in range(self.vocab_size):
            if known is not None and (piece := known(token_id)) is not None:
                yield piece
                continue
            name = name_of(token_id)
            yield None if name is None else piece_of(name, first=False)

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._fast.token_id(token) if self._fast else self._library.token_to_id(token)
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
        name = self._names(token_id) if 0 <= token_id < self.vocab_size else None
        if name is None:
            return None
        piece = self._plan.piece(name, first=first)
        if not first:
            self._other[token_id] = piece
        return piece

    def _literals(self) -> LiteralEncoder | LiteralSegments:
        if self._literal is None:
            encoder = LiteralEncoder(self._library)
            with self._lock:
                self._literal = self._literal or encoder
        return self._literal
