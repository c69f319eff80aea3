"""The encoder's target: texts of any characters, cut and encoded by small vocabularies of several forms. Used by `run.py`.

The tokens of a text must give the text again, in a list as packed, at once as in two segments' ways, with the cache of pieces as without.
"""

import json
import random
from array import array
from collections.abc import Callable

__all__ = ["make_target", "seeds"]

SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
QWEN = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{SIGNS}|{SPACES}"
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MARK = "<|mark|>"
TEXT = "the quick Fox it's don't 12345 x=/y//\n\n  a\tb\r\n 'll'VE  café ſ's 你好 <|mark|> e\u0301 \u2028!?\n/ABCdef "


def vocabulary(pattern: str | None, *, composes: bool) -> bytes:
    """A tokenizer.json: all bytes, and the merges of what a few words are made of."""
    from smg.tokenizer.pieces import BYTE_NAMES

    names, merges = list(BYTE_NAMES), []
    for word in ("Ġthe", "it", "'s", "ĠĠĠĠ", "ing", "123", "ĊĊ", "Ã©", "ABCdefghijklmnop", "Ġqrstuvwxyzabcdef"):
        for size in range(2, len(word) + 1):
            if word[:size] not in names:
                names.append(word[:size])
                merges.append(f"{word[: size - 1]} {word[size - 1]}")
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": pattern is None}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return json.dumps(
        {
            "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": merges},
            "added_tokens": [{"id": len(names), "content": MARK, "special": True, "normalized": False}],
            "normalizer": {"type": "NFC"} if composes else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level] if pattern else [level]},
        }
    ).encode()


def seeds() -> list[bytes]:
    """Texts to mutate: short, of several blocks, and of one long word."""
    return [(TEXT * times).encode() for times in (1, 3, 40)] + [b"a" * 700, b" " * 200, "é".encode() * 90, b"0123456789" * 30]


def make_target(count: Callable[[int], None]) -> Callable[[bytes, random.Random], None]:
    """Gives what encodes one input; `count` is told of its tokens."""
    from smg.tokenizer.native import compose, open_native

    forms = [(pattern, composes) for pattern in (None, QWEN, LLAMA) for composes in (False, True)]
    plain = [open_native(vocabulary(*form[:1], composes=form[1])) for form in forms]
    cached = [open_native(vocabulary(*form[:1], composes=form[1])) for form in forms]
    for encoder in cached:
        assert encoder is not None
        encoder.remember(1 << 16)

    def feed(data: bytes, draw: random.Random) -> None:
        text = data.decode(errors="replace")
        which = draw.randrange(len(forms))
        first, second = plain[which], cached[which]
        assert first is not None
        assert second is not None
        ids = first.encode(text)
        known = [first.token_bytes(i) for i in ids]
        told = b"".join(MARK.encode() if piece is None else piece for piece in known)
        if forms[which][1]:
            assert compose(told.decode()) == compose(text)
        else:
            assert told == text.encode()
        packed = first.encode_packed(text)
        assert array("I", packed).tolist() == ids
        assert all(second.encode_packed(text) == packed for _ in range(3))
        assert first.encode_segments_packed([(text, True), (text, True)]) == packed * 2
        count(len(ids))

    return feed
