"""Finds out what kind of vocabulary a folder or file holds, and loads it. Called once a model by the model directory."""

from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import processors

from smg.errors import ConfigError
from smg.tokenizer.base import Tokenizer
from smg.tokenizer.files import VOCABULARY_BYTES, find_file, read_bytes
from smg.tokenizer.folder import ModelFolder, read_folder
from smg.tokenizer.huggingface import HuggingFaceTokenizer

__all__ = ["load_tokenizer"]

# The tokenizer classes whose BOS and EOS follow tokenizer_config.json, whatever the post-processor in tokenizer.json says.
CONFIG_RULED = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads the tokenizer of a model folder, or of one vocabulary file; ConfigError when there is none or it cannot be used."""
    if path.is_dir():
        file = find_file(path, "tokenizer.json")
        if file is None:
            raise ConfigError([f"{path}: no tokenizer found"])
        return _load_json(file, read_folder(path))
    if not path.is_file():
        raise ConfigError([f"{path}: no such file or folder"])
    return _load_json(path, ModelFolder(path=path.parent))


def _load_json(file: Path, folder: ModelFolder) -> Tokenizer:
    data = read_bytes(file, limit=VOCABULARY_BYTES)
    try:
        library = Library.from_buffer(data)
    except Exception as error:  # the library raises the bare class
        raise ConfigError([f"{file}: not a tokenizer: {error}"]) from error
    _apply_config(library, folder)
    return HuggingFaceTokenizer(
        library, name=folder.path.name, bos_token=folder.bos_token, eos_token=folder.eos_token, eos_token_ids=folder.eos_token_ids
    )


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
