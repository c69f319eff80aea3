"""From a rendered prompt to token ids. Called by the pipeline's prompt stage and by `smg render`."""

from smg.template.render import Rendered
from smg.tokenizer.base import Tokenizer

__all__ = ["encode_rendered"]


def encode_rendered(tokenizer: Tokenizer, rendered: Rendered, *, allow_special: bool = False) -> list[int]:
    """Gives the ids of a prompt. The template writes BOS itself, so none is added.

    Control tokens' names in the client's words become ordinary tokens (known-bugs B79), unless `allow_special`.
    """
    if allow_special or not rendered.literals:
        return tokenizer.encode(rendered.text)
    return tokenizer.encode_literals(rendered.text, literals=rendered.literals)
