"""The quick encoder: `fastokens` where it gives the library's ids on a corpus of awkward texts, nothing otherwise. Called by `load.py`.

It is 10 to 60 times quicker than the library, and frees the GIL for texts from 16 KiB on. Each thread that encodes keeps the words that it
saw, up to about a million of them: with Qwen3's vocabulary a process grows by 110 to 140 MB a thread on nothing but novel words and stays
there (`bench/tokenizer_memory.py`), so texts are encoded on few threads (`smg.pipeline.side`).
"""

import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer as Library

from smg.tokenizer.base import Span
from smg.tokenizer.cache import CacheCounts
from smg.tokenizer.facts import Facts
from smg.tokenizer.literal import LiteralEncoder, LiteralSegments

__all__ = ["FastEncoder", "awkward_texts", "judged", "open_fast"]

# Read by the library at its first long text. Its helpers spin while they wait: they cost several times what they save, and a worker is one
# of many.
ONE_THREAD = ("FASTOKENS_BPE_THREADS", "1")


class FastEncoder:
    """Encodes as the library does, only quicker. Thread-safe."""

    def __init__(self, native: Any) -> None:
        native.no_truncation()
        native.no_padding()
        self._native = native
        self._native_encode = native.encode
        self._cached = False

    def encode(self, text: str) -> list[int]:
        """Gives the ids of text without BOS or EOS; marks written in it become their ids."""
        ids: list[int] = self._native_encode(text).ids
        return ids

    def encode_segments(self, segments: list[tuple[str, bool]]) -> list[int]:
        """Gives the ids of texts, one after the other; added tokens are seen only in those with True."""
        ids: list[int] = self._native.encode_segments(segments).ids
        return ids

    def name(self, token_id: int) -> str | None:
        """Gives a token's name, or None for an id without a token."""
        name: str | None = self._native.id_to_token(token_id)
        return name

    def token_id(self, name: str) -> int | None:
        """Gives a token's id by its name, or None."""
        token_id: int | None = self._native.token_to_id(name)
        return token_id

    def remember(self, cache_bytes: int) -> None:
        """Keeps the ids of what stands between added tokens (L1): exact, for a text that was seen is compared whole."""
        self._native.enable_segment_cache(cache_bytes)
        self._cached = True

    def cache_counts(self) -> CacheCounts | None:
        """Gives how L1 does; None without one."""
        if not self._cached:
            return None
        counts: dict[str, int] = self._native.segment_cache_stats()
        return CacheCounts(hits=counts["hits"], misses=counts["misses"], entries=counts["entries"], bytes=counts["bytes"])


def open_fast(vocabulary: str) -> FastEncoder | None:
    """Reads the JSON of a vocabulary; None where that cannot be done. Whether the result agrees with the library is not known yet."""
    os.environ.setdefault(*ONE_THREAD)
    try:
        native: Any = importlib.import_module("fastokens._native").Tokenizer.from_json_str(vocabulary)
    except Exception:  # not installed, or a part of the vocabulary that it does not know: it raises several classes
        return None
    return FastEncoder(native)


def judged(facts: Facts, fast: FastEncoder, library: Library) -> tuple[bool, bool]:
    """Gives whether the quick encoder agrees with the library on every awkward text, and also where clients' words are literal."""
    if not _same_names(facts, fast, library):
        return False, False
    texts = list(awkward_texts(token.content for token in facts.added))
    expected = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    for text, ids in zip(texts, expected, strict=True):
        try:
            found = fast.encode(text)
        except Exception:  # a text that it cannot take is one that it must not be given
            return False, False
        if found != ids:
            return False, False
    return True, LiteralSegments.possible(facts.added) and _same_literals(facts, fast, library)


def _same_names(facts: Facts, fast: FastEncoder, library: Library) -> bool:
    ids = range(facts.vocab_size + 1)
    try:
        return all(fast.name(i) == library.id_to_token(i) for i in ids) and all(fast.token_id(t.content) == t.id for t in facts.added)
    except Exception:  # as above
        return False


def _same_literals(facts: Facts, fast: FastEncoder, library: Library) -> bool:
    slow, quick = LiteralEncoder(library), LiteralSegments(fast.encode_segments, facts.added)
    for text, literals in _awkward_literals([token.content for token in facts.added]):
        try:
            found = quick.encode(text, literals=literals)
        except Exception:  # as above
            return False
        if found != slow.encode(text, literals=literals):
            return False
    return True


def _awkward_literals(marks: list[str]) -> Iterator[tuple[str, Sequence[Span]]]:
    chosen = [*marks[:12], *marks[-12:]]
    for i, word in enumerate(WORDS):
        mark, other = chosen[i % len(chosen)], chosen[(3 * i + 1) % len(chosen)]
        begin, inside = f"{mark}user\n", f"{word}{mark} {other}x{mark}{mark}{word}"
        text = f"{begin}{inside}{other}\n{mark}{word}{other}"
        yield text, ((len(begin), len(begin) + len(inside)),)
        yield text, ((0, len(text)),)
        yield f" {word} {mark} ", ((0, len(word) // 2), (len(word) + 3, len(word) + 5))


WORDS = (
    "The quick brown fox jumps over the lazy dog.",
    "I'll don't WE'VE it'S ’s o'clock ſ's İ ı ß ẞ ŉ",
    "def f(x: int) -> str:\n\treturn {'a': [1, 22, 333, 4444, 55555]}  # ok\r\n\r\n",
    "3.14159 1,234,567 1e-9 0x1F ١٢٣ Ⅷ ½ ①② １２３ 12345678901234567890",
    "漢字かな交じり文。龘𠮷野家、カタカナ・ﾊﾝｶｸ 한국어 조선글 ᄒᆞᆫ글",
    "क्षत्रिय हिन्दी ภาษาไทยไม่มีช่องว่าง العربية مَرْحَبًا שָׁלוֹם Привет Ελλάδα ქართული አማርኛ ខ្មែរ မြန်မာ",
    "Z͑ͫ̓a̐l̀g̈o ȩ́ e\u0301 \u0041\u030a Å Å ﬁ ﬀ ﷺ \u0958",
    "👩‍👩‍👧‍👦👍🏽🇨🇭 🤣 ☀️ \U0001fae8 𝔘𝔫𝔦 ∑∞ \u200b\ufeff\u2028\u2029\u00a0\u3000\u00ad",
    "  two  spaces\n\n\ttab  end \t\n \n  \n\n\n   x\n",
    "\x00\x01\x1b[31m\x7f\x85\ufffd\ufffe",
    "<html><body class='a'>&amp; © — “quoted” … ¿qué? naïve café</body></html>",
    "https://example.org/a_b-c?d=%20e&f=g#h user@example.org C:\\dir\\file.txt $x = @y; a||b && !c ^ ~d",
    "▁▁ _a_ __init__ Ġ Ċ <0x0A> ##x @@ </w> [UNK] <unk> <s>",
    "HTTPServer XMLHttpRequest iPhone aBcDeF ABCdef ǅabc ǆ",
    "=" * 70 + "\n" + "-" * 33 + "\n" + "." * 17 + "!" * 5 + "?" * 3,
    "a" * 300 + " " + "ab" * 150 + " " + "你" * 100,
    " " * 100 + "x" + "\n" * 40 + "y" + "\t" * 20 + "z" + "\r\n" * 10,
)


def awkward_texts(added: Iterable[str]) -> Iterable[str]:
    """Gives texts on which tokenizers are known to differ: scripts, digits, spaces, contractions, composition, and added tokens in them."""
    yield ""
    yield from WORDS
    for word in WORDS:
        yield f" {word} "
        yield word[::-1]
        yield word.upper() + word.lower()
    for first, second in pairwise(WORDS):
        yield first[: len(first) // 2] + second[len(second) // 2 :]
    marks = list(added)
    for mark in [*marks[:40], *marks[-40:]]:
        yield f"a{mark}b {mark} \n{mark}{mark}  c"
        yield mark[1:] + mark[:-1]
    yield " ".join(marks[:200])
    yield "\n".join(WORDS) * 3
