"""`smg tokenize`: a text's token ids, for whoever asks what a tokenizer does. Prints one JSON object."""

import json
import sys
from pathlib import Path

from smg.commands.arguments import Arguments

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Prints `{"count", "ids", "tokens"}`; gives 0."""
    parser = Arguments(prog="smg tokenize", description="Prints the token ids of a text and the text of each token, as JSON.")
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="folder of a model, or a tokenizer file")
    parser.add_argument("--add-special-tokens", action="store_true", help="with BOS and EOS as the tokenizer's file says")
    parser.add_argument("--ordinary", action="store_true", help="nothing is special: names of control tokens are plain text")
    parser.add_argument("text", metavar="TEXT|-", help="the text; - reads standard input")
    options = parser.read(arguments)
    text = sys.stdin.read() if options.text == "-" else options.text
    if options.ordinary and options.add_special_tokens:
        parser.error("--ordinary and --add-special-tokens exclude each other")

    from smg.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path(options.tokenizer))
    ids = tokenizer.encode_ordinary(text) if options.ordinary else tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
    tokens = [tokenizer.token_bytes(token_id).decode("utf-8", "backslashreplace") for token_id in ids]
    print(json.dumps({"count": len(ids), "ids": ids, "tokens": tokens}, ensure_ascii=False))
    return 0
