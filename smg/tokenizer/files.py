"""Reads the files of a model folder. In: a path somebody configured or downloaded; out: bytes or JSON of bounded size. Used by the
tokenizer and
template loaders; everything in such a folder is hostile, so sizes are capped before anything is parsed."""

import gzip
import zlib
from pathlib import Path

import msgspec

from smg.errors import ConfigError
from smg.types.json import JsonObject

__all__ = ["CONFIG_BYTES", "TEMPLATE_BYTES", "VOCABULARY_BYTES", "find_file", "read_bytes", "read_json", "read_text"]

CONFIG_BYTES = 32 << 20
TEMPLATE_BYTES = 1 << 20
VOCABULARY_BYTES = 512 << 20


def find_file(folder: Path, name: str) -> Path | None:
    """Gives the file `name` of a folder, or its gzipped form `name.gz`, or None."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Gives the content, unpacked when the name ends in `.gz`; ConfigError when it is longer than `limit` bytes or unreadable."""
    try:
        data = _read(path, limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    if len(data) > limit:
        raise ConfigError([f"{path}: longer than {limit} bytes"])
    return data


def _read(path: Path, limit: int) -> bytes:
    if path.suffix == ".gz":
        with gzip.open(path) as packed:
            return packed.read(limit)
    with path.open("rb") as plain:
        return plain.read(limit)


def read_text(path: Path, *, limit: int) -> str:
    """Gives the content as UTF-8 text; ConfigError when it is not."""
    data = read_bytes(path, limit=limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8: {error}"]) from error


def read_json(folder: Path, name: str) -> JsonObject:
    """Gives the JSON object in a folder's file `name`, `{}` when there is no such file; ConfigError when it holds anything else."""
    path = find_file(folder, name)
    if path is None:
        return {}
    data = read_bytes(path, limit=CONFIG_BYTES)
    try:
        parsed: JsonObject = msgspec.json.decode(data, type=dict)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError([f"{path}: not a JSON object: {error}"]) from error
    return parsed
