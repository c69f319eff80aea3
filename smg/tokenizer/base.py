"""What the gateway asks of a tokenizer, whatever file it came from."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence

from smg.tokenizer.cache import CacheCounts

__all__ = ["Decoder", "Span", "Tokenizer"]

Span = tuple[int, int]


class Decoder(ABC):
    """Turns the ids of one choice into text, step by step. Whatever the steps, the joined text equals the decoding of all ids at once.

    Bytes that may still become a character are held back; bytes that cannot become U+FFFD as the reference library gives them.
    """

    @abstractmethod
    def feed(self, ids: Sequence[int]) -> str:
        """Gives the text that became certain with these ids; may be empty."""

    @abstractmethod
    def flush(self) -> str:
        """Gives what was held back, at the end of the output."""


class Tokenizer(ABC):
    """A loaded vocabulary. Thread-safe; `encode` and `decode` release the GIL where the library does.

    vocab_size     one more than the largest id
    longest_token  bytes of the longest token's name, which no token's text exceeds
    special_ids    what `skip_special_tokens` leaves out
    """

    name: str
    vocab_size: int
    longest_token: int
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Gives the ids of text; special tokens written in it become their ids. `add_special_tokens` adds BOS/EOS as the file says."""

    @abstractmethod
    def encode_ordinary(self, text: str) -> list[int]:
        """Gives the ids of text in which nothing is special: a control token's name becomes ordinary tokens."""

    @abstractmethod
    def encode_literals(self, text: str, *, literals: Sequence[Span]) -> list[int]:
        """Gives the ids of text in which no control token is seen inside, or reaching into, the character spans `literals` (sorted)."""

    def encode_packed(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """Gives the same as `encode`, four bytes an id in the machine's order: an array("I") without the objects of a list."""
        return array("I", self.encode(text, add_special_tokens=add_special_tokens)).tobytes()

    def encode_literals_packed(self, text: str, *, literals: Sequence[Span]) -> bytes:
        """Gives the same as `encode_literals`, in the form of `encode_packed`."""
        return array("I", self.encode_literals(text, literals=literals)).tobytes()

    @property
    def byte_level(self) -> bool:
        """True when decoding is joining `token_bytes` and reading the whole as UTF-8, so that native code can do it."""
        return False

    @property
    def joined_text(self) -> tuple[str, int] | None:
        """None, or what the beginning of the joined `pieces` loses: `(character, how often)`. Then native code can decode them.

        A run of bytes is a text as a whole, or as many U+FFFD as it has bytes.
        """
        return None

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Gives the text of ids as the reference library does."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Gives the bytes of one token as they stand in running text (for `logprobs.bytes`); none for an id without a token."""

    @abstractmethod
    def pieces(self) -> Iterator[str | bytes | None]:
        """Gives what each id from 0 to `vocab_size` stands for in running text, and remembers none of it.

        Bytes are (part of) a character's, None is an id without a token.
        """

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """Gives the id of a token by its name, or None."""

    @abstractmethod
    def decoder(self, *, skip_special_tokens: bool = True, keep: frozenset[int] = frozenset(), prompt_tail: Sequence[int] = ()) -> Decoder:
        """Makes a decoder for one choice. `keep`: special ids shown although specials are skipped; `prompt_tail`: the prompt's last ids.

        With a prompt tail the text is a continuation: a leading space that the vocabulary strips at the start of a text is kept.
        """

    def cache_counts(self) -> CacheCounts | None:
        """Gives how the cache of text pieces (L1) does; None without one."""
        return None
