"""The names of BOS, EOS and their kin where only the vocabulary knows them: folders of Mistral's own form have no tokenizer_config.json.

In: a model folder. Out: what `folder.py` gives templates and the tokenizer as special tokens; a file of the folder that names one wins.
"""

from pathlib import Path

from smg.errors import ConfigError
from smg.tokenizer.files import find_file
from smg.tokenizer.sentencepiece import sentencepiece_specials

__all__ = ["TEKKEN_SPECIALS", "vocabulary_file", "vocabulary_specials"]

TEKKEN_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def vocabulary_file(folder: Path) -> Path | None:
    """Gives the folder's vocabulary of Mistral's own form: tekken, or a SentencePiece file with a version in its name."""
    tekken = find_file(folder, "tekken.json")
    if tekken is not None:
        return tekken
    versions = sorted(folder.glob("tokenizer.model.v*"))
    return versions[-1] if versions else None


def vocabulary_specials(folder: Path) -> dict[str, str]:
    """Gives special tokens by name; {} where a tokenizer.json is there, or the vocabulary says nothing of them."""
    if find_file(folder, "tokenizer.json") is not None:
        return {}
    file = find_file(folder, "tokenizer.model") or vocabulary_file(folder)
    if file is None:
        return {}
    if file.name.startswith("tekken"):
        return TEKKEN_SPECIALS
    try:
        return sentencepiece_specials(file)
    except ConfigError:  # tiktoken, or broken: who loads it says so
        return {}
