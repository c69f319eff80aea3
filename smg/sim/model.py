"""The model folder of a simulated engine: its tokenizer, its ids and what the protocols tell about it. Read once at start."""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import cast

from msgspec import Struct
from tokenizers import Tokenizer

from smg.sim.train import MODEL_FOLDER
from smg.types.json import JsonObject

__all__ = ["SimModel", "load_model"]

EMBEDDED_NAME = "sim-model"
FALLBACK_CONTEXT = 32768
ARCHIVED_NAMES = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "tiktoken.model",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
    }
)
ARCHIVED_SUFFIXES = (".tiktoken", ".jinja", ".model")


class SimModel(Struct, frozen=True, kw_only=True):
    """A loaded folder. `special_ids` are those that skip_special_tokens drops; `default_sampling` is generation_config's sampling part."""

    folder: Path
    name: str
    tokenizer: Tokenizer
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int
    pad_id: int
    special_ids: frozenset[int]
    architectures: tuple[str, ...]
    model_type: str
    default_sampling: JsonObject

    @property
    def default_sampling_json(self) -> str:
        """The sampling defaults as protocols send them; "" when there are none."""
        return json.dumps(self.default_sampling) if self.default_sampling else ""

    def encode(self, text: str) -> list[int]:
        """Gives the ids of text, control tokens written in it included."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Gives the text of ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def archive(self) -> tuple[bytes, str]:
        """Gives the zip of the tokenizer's files and its SHA-256 in hex, the same bytes for the same folder."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(self.folder.iterdir()):
                if path.is_file() and (path.name in ARCHIVED_NAMES or path.suffix in ARCHIVED_SUFFIXES):
                    archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
        data = buffer.getvalue()
        return data, hashlib.sha256(data).hexdigest()


def load_model(folder: str, *, served_name: str = "", context_length: int = 0) -> SimModel:
    """Reads a folder that has a tokenizer.json; "" reads the embedded one. FileNotFoundError or ValueError when it cannot be used."""
    path = Path(folder) if folder else MODEL_FOLDER
    tokenizer = _load_tokenizer(path / "tokenizer.json")
    config, generation = _read(path / "config.json"), _read(path / "generation_config.json")
    added = tokenizer.get_added_tokens_decoder()
    special = frozenset(number for number, token in added.items() if token.special)
    eos = tuple(dict.fromkeys([*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]))
    if not eos:
        raise ValueError(f"{path.name}: neither config.json nor generation_config.json names an EOS token")
    length = context_length or config.get("max_position_embeddings")
    architectures = config.get("architectures")
    sampling = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return SimModel(
        folder=path,
        name=served_name or (path.name if folder else EMBEDDED_NAME),
        tokenizer=tokenizer,
        context_length=length if isinstance(length, int) else FALLBACK_CONTEXT,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        eos_ids=eos,
        bos_id=next(iter(_ids(config.get("bos_token_id"))), 0),
        pad_id=next(iter(_ids(config.get("pad_token_id"))), 0),
        special_ids=special,
        architectures=tuple(str(name) for name in architectures) if isinstance(architectures, list) else (),
        model_type=str(config.get("model_type", "")),
        default_sampling={name: generation[name] for name in sampling if name in generation},
    )


def _load_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path.name}: {error}") from error


def _read(path: Path) -> JsonObject:
    return cast(JsonObject, json.loads(path.read_bytes())) if path.is_file() else {}


def _ids(value: object) -> list[int]:
    """An id or a list of ids, or nothing, as a list."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]
