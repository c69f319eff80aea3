"""From a rendered prompt to token ids. Called by the pipeline's prompt stage and by `smg render`."""

from smg.template.render import Rendered
from smg.tokenizer.base import Tokenizer

__all__ = ["encode_rendered"]


def encode_rendered(
    tokenizer: Tokenizer, rendered: Rendered, *, allow_special: bool = False, add_special_tokens: bool = False
) -> list[int]:
    """Gives the ids of a prompt. The template writes BOS itself; with `add_special_tokens` one is added where it did not (known-bugs B80).

    Control tokens' names in the client's words become ordinary tokens (known-bugs B79), unless `allow_special`.
    """
    if allow_special or not rendered.literals:
        ids = tokenizer.encode(rendered.text)
    else:
        ids = tokenizer.encode_literals(rendered.text, literals=rendered.literals)
    bos = tokenizer.token_id(tokenizer.bos_token) if add_special_tokens and tokenizer.bos_token else None
    if bos is not None and ids[:1] != [bos] and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]:
        return [bos, *ids]
    return ids
