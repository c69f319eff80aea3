"""Tokenizers: vocabularies of every kind behind one interface, and what a model folder says about its model."""

from smg.tokenizer.base import Decoder, Tokenizer
from smg.tokenizer.folder import AddedToken, ModelFolder, read_folder
from smg.tokenizer.load import load_tokenizer

__all__ = ["AddedToken", "Decoder", "ModelFolder", "Tokenizer", "load_tokenizer", "read_folder"]
