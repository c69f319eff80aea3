"""From a rendered prompt to token ids. Called by the pipeline's prompt stage and by `smg render`."""

from array import array

from smg.template.render import Rendered
from smg.tokenizer.base import Tokenizer

__all__ = ["encode_prompt", "encode_rendered"]


def encode_rendered(
    tokenizer: Tokenizer, rendered: Rendered, *, allow_special: bool = False, add_special_tokens: bool = False
) -> list[int]:
    """Gives the ids of a prompt. The template writes BOS itself; with `add_special_tokens` one is added where it did not (known-bugs B80).

    Control tokens' names in the client's words become ordinary tokens (known-bugs B79), unless `allow_special`.
    """
    ids = encode_prompt(tokenizer, rendered, allow_special=allow_special).tolist()
    bos = tokenizer.token_id(tokenizer.bos_token) if add_special_tokens and tokenizer.bos_token else None
    if bos is not None and ids[:1] != [bos] and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]:
        return [bos, *ids]
    return ids


def encode_prompt(tokenizer: Tokenizer, rendered: Rendered, *, allow_special: bool = False) -> "array[int]":
    """Gives the same without `add_special_tokens`, four bytes an id: no object is made of any."""
    if allow_special or not rendered.literals:
        return array("I", tokenizer.encode_packed(rendered.text))
    return array("I", tokenizer.encode_literals_packed(rendered.text, literals=rendered.literals))
