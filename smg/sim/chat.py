"""Chat and text for the OpenAI-compatible engine: messages become a prompt, ids become text with stop strings cut off."""

import json

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from smg.sim.model import SimModel
from smg.sim.request import Refused
from smg.types.json import Json, JsonObject

__all__ = ["TextStream", "render_chat"]


def render_chat(model: SimModel, *, messages: Json, tools: Json, kwargs: JsonObject) -> str:
    """Gives the prompt's text by the folder's chat template; Refused when there is none or it refuses."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = _to_json
    config = model.folder / "tokenizer_config.json"
    separate = model.folder / "chat_template.jinja"
    tokens = json.loads(config.read_bytes()) if config.is_file() else {}
    source = separate.read_text(encoding="utf-8") if separate.is_file() else tokens.get("chat_template")
    if not isinstance(source, str):
        raise Refused("the model has no chat template")
    marks = {name: value for name, value in tokens.items() if name.endswith("_token") and isinstance(value, str)}
    try:
        return environment.from_string(source).render(messages=messages, tools=tools, add_generation_prompt=True, **{**marks, **kwargs})
    except TemplateError as error:
        raise Refused(f"chat template: {error}") from error


class TextStream:
    """Turns one choice's ids into text, holding back what may be the beginning of a stop string or half a character."""

    def __init__(self, model: SimModel, *, stop: tuple[str, ...], keep_stop: bool, skip_special_tokens: bool) -> None:
        self._tokenizer = model.tokenizer
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._hold = max((len(text) for text in stop), default=1) - 1
        self._keep_stop = keep_stop
        self._pending = ""

    def feed(self, ids: list[int]) -> str:
        """Gives the text that is certain now."""
        for number in ids:
            self._pending += self._stream.step(self._tokenizer, number) or ""
        cut = len(self._pending) - self._hold
        text, self._pending = (self._pending[:cut], self._pending[cut:]) if cut > 0 else ("", self._pending)
        return text

    def finish(self, ids: list[int], *, matched: str | int | None) -> str:
        """Gives the rest, without the stop string that matched."""
        for number in ids:
            self._pending += self._stream.step(self._tokenizer, number) or ""
        if not isinstance(matched, str) or matched not in self._pending:
            return self._pending
        end = self._pending.index(matched)
        return self._pending[: end + len(matched) if self._keep_stop else end]


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Json, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
