"""Finds the chat template of a model. Called once a model by the model directory, and by `smg render`."""

from pathlib import Path

from smg.errors import ConfigError
from smg.template.render import ChatTemplate
from smg.tokenizer.files import TEMPLATE_BYTES, read_text
from smg.tokenizer.folder import ModelFolder

__all__ = ["load_template"]


def load_template(folder: ModelFolder, *, override: str | None = None, trust_client: bool = False) -> ChatTemplate | None:
    """Gives the folder's templates, with `override` as the default one: a name among them, a file, or the template's own text.

    `trust_client`: requests may bring templates of their own.
    None when there is no template; ConfigError when one is not valid or the override names nothing.
    """
    templates = dict(folder.chat_templates)
    if override:
        templates["default"] = templates[override] if override in templates else _override(override)
        if override not in folder.chat_templates:
            templates = {"default": templates["default"]}  # a template given by hand rules alone, with tools or without
    if not templates:
        return None
    return ChatTemplate(templates, special_tokens=folder.special_tokens, added_tokens=folder.added_tokens, trust_client=trust_client)


def _override(text: str) -> str:
    if "{{" in text or "{%" in text:
        return text
    path = Path(text)
    if not path.is_file():
        raise ConfigError([f"chat template {text!r}: no such file, and no template of the model has that name"])
    return read_text(path, limit=TEMPLATE_BYTES)
