"""Whether the quick encoder may be used: it must give the library's ids on a corpus of awkward texts. Called by `load.py`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenizers import Tokenizer as Library

from smg.tokenizer.base import Span
from smg.tokenizer.facts import Facts
from smg.tokenizer.foreign import ForeignEncoder
from smg.tokenizer.literal import LiteralEncoder, LiteralSegments
from smg.tokenizer.native import NativeEncoder

__all__ = ["awkward_texts", "judged"]

Quick = NativeEncoder | ForeignEncoder


def judged(facts: Facts, fast: Quick, library: Library) -> tuple[bool, bool]:
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


def _same_names(facts: Facts, fast: Quick, library: Library) -> bool:
    ids = range(facts.vocab_size + 1)
    try:
        return all(fast.name(i) == library.id_to_token(i) for i in ids) and all(fast.token_id(t.content) == t.id for t in facts.added)
    except Exception:  # as above
        return False


def _same_literals(facts: Facts, fast: Quick, library: Library) -> bool:
    slow, quick = LiteralEncoder(library), LiteralSegments(fast, facts.added)
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
