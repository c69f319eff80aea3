"""Real tokenizers for the tests of this folder, each loaded once."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from smg.tokenizer import Tokenizer, load_tokenizer

OPENAI = ("cl100k_base", "o200k_base")


@pytest.fixture(scope="session")
def real(shared: Path) -> Callable[[str], Tokenizer]:
    """Loads a shared tokenizer by its folder's name, or an OpenAI vocabulary by its file's; without the slow-loading quick encoder."""

    @lru_cache(4)
    def load(name: str) -> Tokenizer:
        folder = shared / "fixtures" / "tokenizers"
        return load_tokenizer(folder / "openai-tiktoken" / f"{name}.tiktoken" if name in OPENAI else folder / name, fast=False)

    return load
