"""Tokenizers: vocabularies of every kind behind one interface, and what a model folder says about its model."""

from smg.tokenizer.base import Decoder, Tokenizer
from smg.tokenizer.cache import ByteLru, CacheCounts, content_key
from smg.tokenizer.folder import AddedToken, ModelFolder, read_folder
from smg.tokenizer.load import load_tokenizer

__all__ = ["AddedToken", "ByteLru", "CacheCounts", "Decoder", "ModelFolder", "Tokenizer", "content_key", "load_tokenizer", "read_folder"]
