"""Trains the embedded tokenizer: `data/corpus.txt` comes in, the folder `data/model` goes out. Run by hand as `python -m smg.sim.train`.

The result is checked in; a test trains again and compares, so that corpus, script and folder cannot drift apart.
"""

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from smg.types.json import JsonObject

__all__ = ["CORPUS", "MODEL_FILES", "MODEL_FOLDER", "build_files", "train_tokenizer"]

DATA = Path(__file__).parent / "data"
CORPUS = DATA / "corpus.txt"
MODEL_FOLDER = DATA / "model"
MODEL_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")

VOCABULARY_SIZE = 4096
CONTEXT_LENGTH = 32768
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# As in the families that use these marks: added, so that they are one token each, but not special, so that decoding keeps them.
MARK_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(lines: list[str]) -> Tokenizer:
    """Gives a byte-level BPE of VOCABULARY_SIZE tokens, marks included, learnt from `lines`; the same lines give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token=None, fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=_regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(CONTROL_TOKENS) - len(MARK_TOKENS),
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARK_TOKENS])
    return tokenizer


def build_files(corpus: Path) -> dict[str, str]:
    """Gives the text of every file of MODEL_FILES by its name. The chat template is read from `data/chat_template.jinja`."""
    tokenizer = train_tokenizer(corpus.read_text(encoding="utf-8").splitlines(keepends=True))
    stop = tokenizer.token_to_id("<|im_end|>")
    end = tokenizer.token_to_id("<|endoftext|>")
    config: JsonObject = {
        "architectures": ["SimForCausalLM"],
        "model_type": "sim",
        "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
        "max_position_embeddings": CONTEXT_LENGTH,
        "eos_token_id": stop,
        "pad_token_id": end,
    }
    generation: JsonObject = {"eos_token_id": [stop, end], "pad_token_id": end, "temperature": 0.7, "top_p": 0.95, "top_k": 20}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": _dump(_tokenizer_config()),
        "config.json": _dump(config),
        "generation_config.json": _dump(generation),
    }


def main() -> int:
    """Writes the folder. Gives the exit status."""
    parser = argparse.ArgumentParser(prog="smg.sim.train", description="train the simulator's embedded tokenizer")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in build_files(args.corpus).items():
        (args.out / name).write_text(text, encoding="utf-8")
    return 0


def _tokenizer_config() -> JsonObject:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_LENGTH,
        "chat_template": (DATA / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def _dump(value: JsonObject) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _regex(pattern: str) -> str:
    from tokenizers import Regex

    return Regex(pattern)  # type: ignore[return-value]


if __name__ == "__main__":
    raise SystemExit(main())
