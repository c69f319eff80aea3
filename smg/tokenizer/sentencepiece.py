"""SentencePiece vocabularies of the BPE kind: `tokenizer.model` of Llama 2, Mistral 7B, Mixtral, Gemma. Out: a library tokenizer.

SentencePiece merges the pair whose joined piece has the best score; the library wants pairs in the order of their merging, so every way to
split a piece into two becomes a merge, in the order of the piece's score. The file is a protobuf message of which few fields matter, so it
is read here by hand. Format: google/sentencepiece, `src/sentencepiece_model.proto`; sentencepiece itself is the oracle of the tests.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from smg.errors import ConfigError
from smg.tokenizer.files import VOCABULARY_BYTES, read_bytes

__all__ = ["build_sentencepiece", "sentencepiece_specials"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BPE = 2
SPACE = "▁"
PIECES_MAX = 1 << 20
PIECE_CHARACTERS = 1024


class _Piece(Struct):
    text: str
    score: float
    kind: int


class _Model(Struct):
    pieces: list[_Piece]
    trainer: dict[int, int | bytes]
    normalizer: dict[int, int | bytes]

    def special(self, field: int, default: int) -> str | None:
        """The piece that a field of the trainer's spec names by its number; -1 = there is none."""
        number = self.trainer.get(field, default)
        return self.pieces[number].text if isinstance(number, int) and 0 <= number < len(self.pieces) else None


def sentencepiece_specials(path: Path) -> dict[str, str]:
    """Gives the names of BOS, EOS and the unknown token; ConfigError when the file is no such vocabulary."""
    model = _read(path)
    found = {"bos_token": model.special(41, 1), "eos_token": model.special(42, 2), "unk_token": model.special(40, 0)}
    return {name: token for name, token in found.items() if token}


def build_sentencepiece(path: Path) -> Tokenizer:
    """Reads a vocabulary; ConfigError when it is not one, or of a kind that needs a tokenizer.json."""
    model = _read(path)
    if model.trainer.get(3, 1) != BPE:
        raise ConfigError([f"{path}: only SentencePiece vocabularies of the BPE kind are read; give a tokenizer.json"])
    if model.normalizer.get(2) or model.normalizer.get(4, 1) or not model.normalizer.get(5, 1) or model.trainer.get(24):
        raise ConfigError([f"{path}: this SentencePiece vocabulary changes text before it is split; give a tokenizer.json"])
    vocabulary = {piece.text: number for number, piece in enumerate(model.pieces)}
    if len(vocabulary) != len(model.pieces):
        raise ConfigError([f"{path}: a piece is there twice"])
    unknown = next((piece.text for piece in model.pieces if piece.kind == UNKNOWN), None)
    fallback = any(piece.kind == BYTE for piece in model.pieces)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(model), unk_token=unknown, fuse_unk=True, byte_fallback=fallback))
    prefix = bool(model.normalizer.get(3, 1))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    _add_specials(tokenizer, model)
    return tokenizer


def _add_specials(tokenizer: Tokenizer, model: _Model) -> None:
    special = [piece for piece in model.pieces if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED) and piece.text]
    tokenizer.add_tokens([AddedToken(piece.text, normalized=False, special=piece.kind != USER_DEFINED) for piece in special])
    bos = model.special(41, 1)
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos}:0 $A:0", special_tokens=[(bos, tokenizer.token_to_id(bos))])


def _merges(model: _Model) -> list[tuple[str, str]]:
    """Every split of every piece into two, the best piece first."""
    numbers = {piece.text: number for number, piece in enumerate(model.pieces) if piece.kind in (NORMAL, USER_DEFINED, UNUSED)}
    merges: list[tuple[float, int, int, int, str, str]] = []
    for piece in model.pieces:
        if piece.kind != NORMAL:
            continue
        text = piece.text
        for cut in range(1, len(text)):
            left, right = numbers.get(text[:cut]), numbers.get(text[cut:])
            if left is not None and right is not None:
                merges.append((-piece.score, numbers[text], left, right, text[:cut], text[cut:]))
    merges.sort()
    return [(left, right) for _, _, _, _, left, right in merges]


def _read(path: Path) -> _Model:
    model = _Model([], {}, {})
    try:
        for field, value in _fields(read_bytes(path, limit=VOCABULARY_BYTES)):
            if field == 1 and isinstance(value, bytes):
                model.pieces.append(_piece(dict(_fields(value))))
            elif field == 2 and isinstance(value, bytes):
                model.trainer = dict(_fields(value))
            elif field == 3 and isinstance(value, bytes):
                model.normalizer = dict(_fields(value))
            if len(model.pieces) > PIECES_MAX:
                raise ValueError("too many pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise ConfigError([f"{path}: neither a tiktoken nor a SentencePiece vocabulary: {error}"]) from error
    if not model.pieces:
        raise ConfigError([f"{path}: a SentencePiece vocabulary without pieces"])
    return model


def _piece(fields: dict[int, int | bytes]) -> _Piece:
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int) or len(text) > PIECE_CHARACTERS:
        raise ValueError("a piece makes no sense")
    return _Piece(text.decode(), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, and bytes of texts, messages and fixed numbers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a broken message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise ValueError("a broken number")
