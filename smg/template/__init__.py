"""Chat templates: from a conversation to the prompt's text and ids."""

from smg.template.encode import encode_prompt, encode_rendered
from smg.template.load import load_template
from smg.template.render import ChatTemplate, Rendered

__all__ = ["ChatTemplate", "Rendered", "encode_prompt", "encode_rendered", "load_template"]
