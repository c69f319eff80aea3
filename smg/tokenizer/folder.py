"""What a model folder says besides its weights: identity, context length, EOS, sampling defaults, special tokens, chat templates.

In: the path of a Hugging Face style folder, local to the gateway. Out: a `ModelFolder`, which the model directory keeps and the template
loader
reads. No file of a folder is required; those that are there must be well-formed.
"""

from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from smg.errors import ConfigError
from smg.tokenizer.files import TEMPLATE_BYTES, VOCABULARY_BYTES, find_file, read_bytes, read_json, read_text
from smg.tokenizer.mistral import vocabulary_specials
from smg.types.job import Sampling
from smg.types.json import Json, JsonObject

__all__ = ["AddedToken", "ModelFolder", "read_folder"]

CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "n_ctx",
)
NESTED_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
UNLIMITED = 1 << 40  # tokenizer_config writes "no limit" as 1e30
SAMPLING_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
)


class AddedToken(Struct, frozen=True):
    """One entry of a tokenizer's table of added tokens."""

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


class ModelFolder(Struct, frozen=True, kw_only=True):
    """A model folder as read. `special_tokens` maps names such as `bos_token` to their text; `chat_templates` maps `default` and others
    to theirs."""

    path: Path
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    context_length: int = 0  # 0 = unknown
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Sampling = Sampling()
    bos_token: str | None = None
    eos_token: str | None = None
    special_tokens: dict[str, str] = {}
    added_tokens: tuple[AddedToken, ...] = ()
    chat_templates: dict[str, str] = {}
    config: JsonObject = {}
    tokenizer_config: JsonObject = {}


class _AddedTokens(Struct):
    added_tokens: list[AddedToken] = []


def read_folder(path: Path) -> ModelFolder:
    """Reads a model folder; ConfigError with the file's name when it is no folder or a file in it is broken."""
    if not path.is_dir():
        raise ConfigError([f"{path}: no such folder"])
    config = read_json(path, "config.json")
    generation = read_json(path, "generation_config.json")
    tokenizer_config = read_json(path, "tokenizer_config.json")
    added = _added_tokens(path, tokenizer_config)
    specials = _special_tokens(path, tokenizer_config)
    return ModelFolder(
        path=path,
        architectures=tuple(name for name in _items(config.get("architectures")) if isinstance(name, str)),
        model_type=_text(config.get("model_type")),
        context_length=_context_length(config, tokenizer_config),
        eos_token_ids=_eos_token_ids(config, generation, specials.get("eos_token"), added),
        sampling_defaults=_sampling(generation),
        bos_token=specials.get("bos_token"),
        eos_token=specials.get("eos_token"),
        special_tokens=specials,
        added_tokens=added,
        chat_templates=_chat_templates(path, tokenizer_config),
        config=config,
        tokenizer_config=tokenizer_config,
    )


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _token_text(value: Json) -> str | None:
    """A token is written as its text or as an object with `content`."""
    return _text(value.get("content")) if isinstance(value, dict) else _text(value)


def _count(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < UNLIMITED:
        return None
    return int(value)


def _added_tokens(path: Path, tokenizer_config: JsonObject) -> tuple[AddedToken, ...]:
    """The table of tokenizer.json, then what tokenizer_config.json and a special_tokens.json beside a tiktoken file add to it."""
    found: dict[str, AddedToken] = {}
    file = find_file(path, "tokenizer.json")
    if file is not None:
        data = read_bytes(file, limit=VOCABULARY_BYTES)
        try:
            found = {token.content: token for token in msgspec.json.decode(data, type=_AddedTokens).added_tokens}
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError([f"{file}: not a tokenizer: {error}"]) from error
    decoder = tokenizer_config.get("added_tokens_decoder")
    for key, entry in (decoder if isinstance(decoder, dict) else {}).items():
        content = _token_text(entry)
        if content and key.isdecimal() and content not in found:
            special = isinstance(entry, dict) and entry.get("special") is True
            found[content] = AddedToken(int(key), content, special, normalized=False)
    if file is None:
        listed = read_json(path, "special_tokens.json").get("special_tokens")
        for content, number in (listed if isinstance(listed, dict) else {}).items():
            if isinstance(number, int) and content not in found:
                found[content] = AddedToken(number, content, True, normalized=False)
    return tuple(sorted(found.values(), key=lambda token: token.id))


def _special_tokens(path: Path, tokenizer_config: JsonObject) -> dict[str, str]:
    """The variables such as `bos_token` that a template may use: those of tokenizer_config.json win, as in transformers."""
    specials = vocabulary_specials(path) if tokenizer_config.get("eos_token") is None else {}
    for source in (read_json(path, "special_tokens.json"), read_json(path, "special_tokens_map.json"), tokenizer_config):
        for name in SPECIAL_NAMES:
            text = _token_text(source.get(name))
            if text is not None:
                specials[name] = text
    return specials


def _eos_token_ids(config: JsonObject, generation: JsonObject, eos_token: str | None, added: tuple[AddedToken, ...]) -> tuple[int, ...]:
    """The sorted union of every source: one that is more exact than the others must not switch them off (known-bugs B65)."""
    nested = [value for key in NESTED_CONFIGS if isinstance(value := config.get(key), dict)]
    ids: set[int] = {token.id for token in added if token.content == eos_token}
    for source in (config, generation, *nested):
        value = source.get("eos_token_id")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                ids.add(number)
    return tuple(sorted(ids))


def _sampling(generation: JsonObject) -> Sampling:
    """The model's own sampling defaults; values out of range are left out. `do_sample` is not looked at, as the engines do not either."""
    values: dict[str, float | UnsetType] = {}
    for name, low, high in SAMPLING_RANGES:
        value = generation.get(name)
        valid = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        values[name] = float(value) if valid and isinstance(value, int | float) else UNSET
    top_k = generation.get("top_k")
    return Sampling(
        temperature=values["temperature"],
        top_p=values["top_p"],
        min_p=values["min_p"],
        repetition_penalty=values["repetition_penalty"],
        top_k=top_k if isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 1 else UNSET,
    )


def _context_length(config: JsonObject, tokenizer_config: JsonObject) -> int:
    """The smallest length that the config names, stretched by its rope scaling, capped by the tokenizer's own limit (as vLLM derives
    it)."""
    layers = [config, *(value for key in NESTED_CONFIGS if isinstance(value := config.get(key), dict))]
    for layer in layers:
        lengths = [length for key in CONTEXT_KEYS if (length := _count(layer.get(key))) is not None]
        if lengths:
            longest = _stretched(min(lengths), layer)
            cap = _count(tokenizer_config.get("model_max_length"))
            return longest if cap is None else min(longest, cap)
    return 0


def _stretched(length: int, layer: JsonObject) -> int:
    scaling = layer.get("rope_scaling") or layer.get("rope_parameters")
    if not isinstance(scaling, dict):
        return length
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if (
        kind not in ("linear", "dynamic", "yarn")
        or isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 1 <= factor <= 1e6
    ):
        return length
    original = _count(scaling.get("original_max_position_embeddings")) if kind == "yarn" else None
    return int((original or length) * factor)


def _chat_templates(path: Path, tokenizer_config: JsonObject) -> dict[str, str]:
    """Named templates. A file wins over tokenizer_config.json: that is how vendors correct a template without touching the tokenizer."""
    templates = _named(tokenizer_config.get("chat_template"))
    templates.update(_named(read_json(path, "chat_template.json").get("chat_template")))
    files = sorted(path.glob("*.jinja"))
    own = path / "chat_template.jinja"
    if own in files:
        templates["default"] = read_text(own, limit=TEMPLATE_BYTES)
    elif len(files) == 1:
        templates["default"] = read_text(files[0], limit=TEMPLATE_BYTES)
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = read_text(file, limit=TEMPLATE_BYTES)
    return templates


def _named(value: Json) -> dict[str, str]:
    """One text is the default template; a list holds objects of `name` and `template`; an object maps names to texts."""
    if isinstance(value, str):
        return {"default": value}
    pairs: list[tuple[Json, Json]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    pairs += [(item.get("name"), item.get("template")) for item in _items(value) if isinstance(item, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
