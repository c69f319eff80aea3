"""What is known of a vocabulary once it was looked at, so that the reference library need not be loaded for it at the next start.

In: a library tokenizer, or the file that an earlier start wrote into the state folder. Out: `Facts`, on which `HuggingFaceTokenizer`
stands. A file that cannot be read or written costs time, nothing else.
"""

import hashlib
import logging
import os
import tempfile
import unicodedata
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer as Library

from smg import __version__
from smg.tokenizer.folder import AddedToken, ModelFolder

__all__ = ["Facts", "FactsFile", "facts_of"]

log = logging.getLogger(__name__)

RULES = 2  # raised whenever the quick encoder, the self-test of `fast.py` or the meaning of a fact changes
FILE_BYTES = 16 << 20
FRAMED = ("a", "", "Hello, world", " b\n")


class Facts(Struct, frozen=True, kw_only=True):
    """A vocabulary without its tokens.

    vocab_size     one more than the largest id
    longest_token  bytes of the longest token's name
    added          the table of added tokens, by id
    decoder        the decoder's JSON, None without one
    frame          ids that `add_special_tokens` puts before and after every text; None where it does more than that
    fast           True when the quick encoder gave the library's ids on every awkward text
    literal        True when it also encodes clients' look-alikes of control tokens as the library's second face does
    """

    vocab_size: int
    longest_token: int
    added: tuple[AddedToken, ...]
    decoder: str | None
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None
    fast: bool = False
    literal: bool = False


def facts_of(library: Library) -> Facts:
    """Looks at a library tokenizer; whether the quick encoder agrees with it is not known yet."""
    vocabulary = library.get_vocab(with_added_tokens=True)
    decoder = library.decoder
    return Facts(
        vocab_size=max(vocabulary.values(), default=-1) + 1,
        longest_token=max((len(token.encode()) for token in vocabulary), default=1),
        added=tuple(
            AddedToken(token_id, t.content, t.special, t.single_word, t.lstrip, t.rstrip, t.normalized)
            for token_id, t in sorted(library.get_added_tokens_decoder().items())
        ),
        decoder=None if decoder is None else decoder.__getstate__().decode(),
        frame=_frame(library),
    )


def _frame(library: Library) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    bare = [encoding.ids for encoding in library.encode_batch_fast(list(FRAMED), add_special_tokens=False)]
    whole = [encoding.ids for encoding in library.encode_batch_fast(list(FRAMED), add_special_tokens=True)]
    more = len(whole[0]) - len(bare[0])
    for before in range(more + 1):
        begin, end = whole[0][:before], whole[0][before + len(bare[0]) :]
        if all([*begin, *ids, *end] == framed for ids, framed in zip(bare, whole, strict=True)):
            return tuple(begin), tuple(end)
    return None


class FactsFile:
    """Where the facts of one vocabulary are kept: named by the content of its files and by who looked at them."""

    def __init__(self, folder: Path, *, vocabulary: bytes, model: ModelFolder) -> None:
        own = (
            RULES,
            __version__,
            _version("tokenizers"),
            _version("fastokens"),
            unicodedata.unidata_version,
            model.added_tokens,
            model.bos_token,
            model.eos_token,
        )
        digest = hashlib.sha256(msgspec.json.encode((own, model.tokenizer_config)))
        digest.update(vocabulary)
        self._path = folder / f"{digest.hexdigest()}.json"

    def read(self) -> Facts | None:
        """Gives the facts; None when they are not known."""
        try:
            data = self._path.read_bytes() if self._path.stat().st_size <= FILE_BYTES else b""
        except OSError:
            return None
        try:
            return msgspec.json.decode(data, type=Facts)
        except (msgspec.DecodeError, RecursionError):
            return None

    def write(self, facts: Facts) -> None:
        """Keeps the facts; several processes may do so at once."""
        try:
            self._replace(msgspec.json.encode(facts))
        except OSError as error:
            log.info("what is known of the tokenizer cannot be kept: %s", error)

    def _replace(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, self._path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
