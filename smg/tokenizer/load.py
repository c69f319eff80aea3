"""Finds out what kind of vocabulary a folder or file holds, and loads it. Called once a model by the model directory."""

from pathlib import Path

from msgspec import Struct, structs
from tokenizers import Tokenizer as Library
from tokenizers import processors

from smg._ext import NO_EXT
from smg.errors import ConfigError
from smg.tokenizer.base import Tokenizer
from smg.tokenizer.facts import Facts, FactsFile, facts_of
from smg.tokenizer.fast import judged
from smg.tokenizer.files import VOCABULARY_BYTES, find_file, read_bytes
from smg.tokenizer.folder import ModelFolder, read_folder
from smg.tokenizer.foreign import ForeignEncoder, open_foreign
from smg.tokenizer.huggingface import HuggingFaceTokenizer
from smg.tokenizer.mistral import vocabulary_file
from smg.tokenizer.native import NativeEncoder, open_native
from smg.tokenizer.sentencepiece import build_sentencepiece
from smg.tokenizer.tekken import build_tekken
from smg.tokenizer.tiktoken import FILE_NAMES, build_tiktoken, is_tiktoken

__all__ = ["load_tokenizer"]

# The tokenizer classes whose BOS and EOS follow tokenizer_config.json, whatever the post-processor in tokenizer.json says.
CONFIG_RULED = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")


def load_tokenizer(path: Path, *, fast: bool = True, cache_bytes: int = 0, state: Path | None = None) -> Tokenizer:
    """Loads the tokenizer of a model folder, or of one vocabulary file; ConfigError when there is none or it cannot be used.

    `fast`: look for a quicker encoder of the same ids; for a process that encodes little, finding it costs more than it gives.
    `cache_bytes`: bound of the cache of text pieces (L1), 0 = none.
    `state`: folder in which the result of comparing the quick encoder with the library is kept for the next start.
    """
    if path.is_dir():
        return _load(_vocabulary(path), read_folder(path), fast=fast, cache_bytes=cache_bytes, state=state)
    if not path.is_file():
        raise ConfigError([f"{path}: no such file or folder"])
    return _load(path, ModelFolder(path=path.parent), fast=fast, cache_bytes=cache_bytes, state=state)


def _vocabulary(folder: Path) -> Path:
    """The file that holds the vocabulary, by the order in which engines prefer them."""
    for name in ("tokenizer.json", *FILE_NAMES):
        file = find_file(folder, name)
        if file is not None:
            return file
    own = vocabulary_file(folder)
    if own is not None:
        return own
    tiktoken = sorted(folder.glob("*.tiktoken"))
    if len(tiktoken) == 1:
        return tiktoken[0]
    if len(tiktoken) > 1:
        raise ConfigError([f"{folder}: more than one .tiktoken file"])
    raise ConfigError([f"{folder}: no tokenizer found (tokenizer.json, tiktoken.model or *.tiktoken)"])


def _load(file: Path, folder: ModelFolder, *, fast: bool, cache_bytes: int, state: Path | None) -> Tokenizer:
    def library() -> Library:
        return _library(file, folder)

    quick = _quick(file, folder, state) if fast and not NO_EXT else _Quick()
    return HuggingFaceTokenizer(
        quick.library or library,
        name=folder.path.name,
        bos_token=folder.bos_token,
        eos_token=folder.eos_token,
        eos_token_ids=folder.eos_token_ids,
        facts=quick.facts,
        fast=quick.encoder,
        cache_bytes=cache_bytes,
    )


class _Quick(Struct, frozen=True, kw_only=True):
    """The quick encoder where it may be used; the library where it was loaded and is needed further."""

    facts: Facts | None = None
    encoder: NativeEncoder | ForeignEncoder | None = None
    library: Library | None = None


def _quick(file: Path, folder: ModelFolder, state: Path | None) -> _Quick:
    """The encoder reads a tokenizer.json as it is, and the library's own form of any other vocabulary."""
    library = None if _is_json(file) else _library(file, folder)
    data = library.to_str().encode() if library else read_bytes(file, limit=VOCABULARY_BYTES)
    kept = FactsFile(state, vocabulary=data, model=folder) if state else None
    facts = kept.read() if kept else None
    if facts is None:
        library = library or _library(file, folder)
        encoder = open_quick(data)
        facts = facts_of(library)
        agrees, literal = judged(facts, encoder, library) if encoder else (False, False)
        facts = structs.replace(facts, fast=agrees, literal=literal)
        if kept:
            kept.write(facts)
    else:
        encoder = open_quick(data) if facts.fast else None
    return _Quick(facts=facts, encoder=encoder) if facts.fast and encoder else _Quick(facts=facts, library=library)


def open_quick(data: bytes) -> NativeEncoder | ForeignEncoder | None:
    """Opens a vocabulary for the quick encoder that takes it; None when neither does."""
    return open_native(data) or open_foreign(data)


def _is_json(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".json") and not file.name.startswith("tekken")


def _library(file: Path, folder: ModelFolder) -> Library:
    if file.name.startswith("tekken"):
        library = build_tekken(file)
    elif _is_json(file):
        library = _from_json(file)
    elif is_tiktoken(file):
        library = build_tiktoken(file, folder)
    else:
        library = build_sentencepiece(file)
    _apply_config(library, folder)
    return library


def _from_json(file: Path) -> Library:
    data = read_bytes(file, limit=VOCABULARY_BYTES)
    try:
        return Library.from_buffer(data)
    except Exception as error:  # the library raises the bare class
        raise ConfigError([f"{file}: not a tokenizer: {error}"]) from error


def _apply_config(library: Library, folder: ModelFolder) -> None:
    """Sets up BOS and EOS as tokenizer_config.json wants them, where transformers would do so too."""
    config = folder.tokenizer_config
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    bos, eos = config.get("add_bos_token"), config.get("add_eos_token")
    adds = library.num_special_tokens_to_add(False)
    if adds and name not in CONFIG_RULED:
        return
    wanted = [token for token, on in ((folder.bos_token, bos), (folder.eos_token, eos)) if on is True and token]
    if (not adds and not wanted) or (adds and bos is None):
        return
    pairs = [(token, token_id) for token in wanted if (token_id := library.token_to_id(token)) is not None]
    begin = [f"{token}:0" for token, _ in pairs if token == folder.bos_token and bos is True]
    end = [f"{token}:0" for token, _ in pairs if token == folder.eos_token and eos is True]
    library.post_processor = processors.TemplateProcessing(single=" ".join([*begin, "$A:0", *end]), special_tokens=pairs)
