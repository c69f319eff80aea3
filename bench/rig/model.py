"""The model of a benchmark: a folder with tokenizer and template comes in; words of prompts, ids of answers, an engine's facts go out.

The embedded model of the simulator is the default, so that nothing needs to be there. What is made of a folder is kept in `bench/build`.
"""

import hashlib
import json
import pathlib
import random
import re
from collections.abc import Iterator
from functools import cached_property

from tokenizers import Tokenizer

from bench.rig.programs import BUILD
from smg.sim.train import CORPUS, MODEL_FOLDER

__all__ = ["BenchModel"]

SINGLE_WORDS = 6000
MADE_UP = 600  # in the rare half of the list, so that prompts have words of several tokens
SAMPLE = 4000  # words from which the tokens of a word are estimated
ANSWER_CHARACTERS = 2000  # then the answer repeats
AROUND = 30  # tokens of template, system message and number in a chat of the load generator


class BenchModel:
    """`folder` has a tokenizer.json; None takes the embedded one."""

    def __init__(self, folder: str | pathlib.Path | None = None) -> None:
        self.folder = pathlib.Path(folder or MODEL_FOLDER).resolve()
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self._kept = BUILD / "models" / hashlib.sha256((self.folder / "tokenizer.json").read_bytes()).hexdigest()[:16]

    @property
    def vocabulary(self) -> int:
        """Gives the number of token ids."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def stop_token(self) -> int:
        """Gives the id that ends an answer."""
        for name in ("generation_config.json", "config.json"):
            path = self.folder / name
            stop = json.loads(path.read_bytes()).get("eos_token_id") if path.exists() else None
            if stop is not None:
                return int(stop[0] if isinstance(stop, list) else stop)
        return 0

    @cached_property
    def words(self) -> list[str]:
        """Gives the words of prompts, each with the space before it, frequent ones first."""
        draw = random.Random(7)
        inside = self.tokenizer.get_vocab_size()
        decoded = (self.tokenizer.decode([token_id]) for token_id in range(min(inside, 40_000)))
        single = [word for word in decoded if re.fullmatch(r" [a-z]{2,12}", word)][:SINGLE_WORDS]
        return single + [" " + draw.choice(single)[1:7] + draw.choice(single)[1:6] for _ in range(MADE_UP)]

    @cached_property
    def answer_ids(self) -> list[int]:
        """Gives the ids of the constant answer: prose, with no mark in it."""
        text = CORPUS.read_text(encoding="utf-8")[:ANSWER_CHARACTERS]
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, tokens: int, *, seed: int = 1) -> str:
        """Gives a text of about so many tokens, with the load generator's choice of words."""
        return "".join(self._draw(self.words_for(tokens, around=0), seed=seed)).strip()

    def words_for(self, tokens: int, *, around: int = AROUND) -> int:
        """Gives how many words make a chat of about so many tokens, `around` of which are not words."""
        return max(1, round((tokens - around) / self._tokens_a_word))

    def words_file(self) -> pathlib.Path:
        """Gives the file for the load generator."""
        return self._keep("words.txt", "\n".join(json.dumps(word)[1:-1] for word in self.words) + "\n")

    def ids_file(self) -> pathlib.Path:
        """Gives the file for the engine."""
        return self._keep("ids.txt", "\n".join(map(str, self.answer_ids)) + "\n")

    @cached_property
    def _tokens_a_word(self) -> float:
        text = "".join(self._draw(SAMPLE, seed=3))
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids) / SAMPLE

    def _draw(self, count: int, *, seed: int) -> Iterator[str]:
        draw = random.Random(seed)
        return (self.words[int(draw.random() ** 2 * len(self.words))] for _ in range(count))

    def _keep(self, name: str, text: str) -> pathlib.Path:
        path = self._kept / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            self._kept.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path
