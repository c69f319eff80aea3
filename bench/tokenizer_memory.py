"""Memory of the quick encoder, loaded and on words that it never saw. Ours is fixed; fastokens' grows with what a thread keeps.

    python bench/tokenizer_memory.py MODEL_FOLDER [--words 2000000] [--limit-mb 0]

Prints resident memory before and after a later start's loading, after sixty short texts, and after each tenth of the words: encoded by one
thread for good, or, with --limit-mb, by one that is replaced once the process has grown by so much, as the gateway's side thread is.
"""

import argparse
import asyncio
import random
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smg.pipeline.side import SideThread, resident_bytes, trim_memory
from smg.tokenizer import Tokenizer, load_tokenizer

TEXT_WORDS = 500
FIRST_START = "import sys, pathlib, smg.tokenizer; smg.tokenizer.load_tokenizer(pathlib.Path(sys.argv[1]), state=pathlib.Path(sys.argv[2]))"


def novel_texts(words: int, *, seed: int = 1) -> Iterator[str]:
    """Gives texts of made-up words, none of which is likely to come twice."""
    rng = random.Random(seed)
    for _ in range(words // TEXT_WORDS):
        yield " ".join("".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 14))) for _ in range(TEXT_WORDS))


def load_again(folder: Path) -> Tokenizer:
    """Loads as a later start does: what the first one found out is there."""
    with tempfile.TemporaryDirectory() as state:
        subprocess.run([sys.executable, "-c", FIRST_START, str(folder), state], check=True)
        print(f"before loading {resident_bytes() >> 20} MB")
        return load_tokenizer(folder, state=Path(state))


async def measure(folder: Path, *, words: int, limit_mb: int) -> None:
    """Encodes and prints."""
    tokenizer = load_again(folder)
    trim_memory()
    print(f"loaded {resident_bytes() >> 20} MB")
    for text in novel_texts(60 * TEXT_WORDS, seed=2):
        tokenizer.encode(text[:300])
    print(f"60 texts {resident_bytes() >> 20} MB")
    side = SideThread(growth_bytes=limit_mb << 20 if limit_mb else 1 << 60)
    trim_memory()
    print(f"{0:>9} words {resident_bytes() >> 20} MB")
    for done, text in enumerate(novel_texts(words), 1):
        await side.run(tokenizer.encode, text)
        if done * TEXT_WORDS % (words // 10) < TEXT_WORDS:
            print(f"{done * TEXT_WORDS:>9} words {resident_bytes() >> 20} MB, {side.renewals} renewals", flush=True)
    side.close()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--limit-mb", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(measure(options.folder, words=options.words, limit_mb=options.limit_mb))


if __name__ == "__main__":
    main()
