"""`smg render`: messages become the prompt that a model's chat template makes of them, with its token ids. For whoever debugs a model.

One object (`FILE` or standard input), or with --jsonl many, a line each, in one process. What it prints is a contract with outside checks.
"""

import argparse
import datetime
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from smg.commands.arguments import Arguments
from smg.errors import ConfigError, InvalidJson, InvalidValue, SmgError
from smg.template import ChatTemplate, Rendered, encode_rendered, load_template
from smg.tokenizer import ModelFolder, Tokenizer, load_tokenizer, read_folder
from smg.types.job import ChatInput

__all__ = ["RenderCase", "run"]

LOADED_TOKENIZERS = 8
LOADED_TEMPLATES = 64


class RenderCase(Struct, frozen=True, kw_only=True):
    """One thing to render: a line of the --jsonl file; with `template` None the tokenizer folder's own is used. Other keys are ignored."""

    messages: tuple[dict[str, object], ...]
    id: object = None
    template: str | None = None
    tokenizer: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    tools: tuple[dict[str, object], ...] | None = None
    documents: tuple[dict[str, object], ...] | None = None
    kwargs: dict[str, object] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    now: str | None = None


def run(arguments: list[str]) -> int:
    """Prints `{"prompt", "tokens"}`, or `{"error"}` with exit code 1; with --jsonl a line each with its id, and 1 if a line was no case."""
    options = _options(arguments)
    allow = bool(options.allow_special_tokens_in_text)
    if options.jsonl is not None:
        return _render_lines(options.jsonl, allow=allow, exact=options.exact)
    given: dict[str, object] = {"tokenizer": options.tokenizer, "template": options.chat_template, "now": options.now}
    if options.tools is not None:
        given["tools"] = _json(Path(options.tools).read_text(encoding="utf-8"), options.tools)
    if options.kwargs is not None:
        given["kwargs"] = _json(options.kwargs, "--kwargs")
    answer = _answer(_case(_read(options.file), options.file, given), allow=allow, exact=options.exact)
    _print(answer)
    return 1 if "error" in answer else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments(prog="smg render", description="Prints the prompt that a chat template makes of messages, and its token ids.")
    parser.add_argument("--tokenizer", metavar="DIR", help="folder of a model")
    parser.add_argument("--chat-template", metavar="FILE", help="a template in place of the folder's own")
    parser.add_argument("--tools", metavar="FILE", help="JSON list of tools, in place of those beside the messages")
    parser.add_argument("--now", metavar="ISO", help="the time that the template sees")
    parser.add_argument("--kwargs", metavar="JSON", help="further variables for the template")
    parser.add_argument("--allow-special-tokens-in-text", action="store_true", help="let messages contain control tokens")
    parser.add_argument("--exact", action="store_true", help="mend nothing: render or refuse the messages as transformers does")
    parser.add_argument("--jsonl", metavar="FILE", help="many cases, a JSON object a line; - reads standard input")
    parser.add_argument("file", metavar="FILE|-", nargs="?", help='{"messages": […], "tools": […]}; - reads standard input')
    options = parser.read(arguments)
    if (options.jsonl is None) == (options.file is None):
        parser.error("give FILE (- is standard input), or --jsonl FILE")
    if options.jsonl is None and options.tokenizer is None:
        parser.error("--tokenizer is required")
    if options.jsonl is not None and any((options.tokenizer, options.chat_template, options.tools, options.now, options.kwargs)):
        parser.error("with --jsonl each line names its own tokenizer, template, tools, now and kwargs")
    return options


def _render_lines(name: str, *, allow: bool, exact: bool) -> int:
    code = 0
    for number, line in enumerate(_lines(name), 1):
        if not line.strip():
            continue
        try:
            case = _case(line, f"line {number}", {})
        except SmgError as error:
            code = 1
            _print({"id": None, "error": error.message})
        else:
            _print({"id": case.id, **_answer(case, allow=allow, exact=exact)})
    return code


def _read(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def _lines(name: str) -> Iterator[str]:
    if name == "-":
        yield from sys.stdin
        return
    with open(name, encoding="utf-8") as file:
        yield from file


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"{where} is no JSON: {error}") from error


def _case(text: str, where: str, given: dict[str, object]) -> RenderCase:
    """Reads a case with json, which keeps big numbers and lone surrogates as templates of other tools would see them."""
    value = _json(text, where)
    if not isinstance(value, dict):
        raise InvalidValue(f"{where} is no JSON object")
    chosen = {**value, "kwargs": value.get("kwargs") or value.get("chat_template_kwargs")}
    chosen |= {key: said for key, said in given.items() if said is not None}
    try:
        return msgspec.convert(chosen, RenderCase)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{where}: {error}") from error


def _answer(case: RenderCase, *, allow: bool, exact: bool) -> dict[str, object]:
    try:
        return _render(case, allow=allow, exact=exact)
    except SmgError as error:
        return {"error": error.message}


def _render(case: RenderCase, *, allow: bool, exact: bool) -> dict[str, object]:
    template = _template(case.template, case.tokenizer, case.bos_token, case.eos_token)
    fields = {name: getattr(case, name) for name in ("messages", "add_generation_prompt", "continue_final_message")}
    chat = ChatInput(tools=case.tools or (), documents=case.documents or (), template_kwargs=case.kwargs or {}, **fields)  # type: ignore[arg-type]
    now = _time(case.now)
    rendered = Rendered(text=template.render_exactly(chat, now=now)) if exact else template.render(chat, now=now)
    tokens = encode_rendered(_tokenizer(case.tokenizer), rendered, allow_special=allow) if case.tokenizer else None
    return {"prompt": rendered.text, "tokens": tokens}


def _time(text: str | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise InvalidValue(f"now: {error}") from error


@functools.lru_cache(LOADED_TOKENIZERS)
def _tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(Path(path))


@functools.lru_cache(LOADED_TEMPLATES)
def _template(path: str | None, tokenizer: str | None, bos_token: str | None, eos_token: str | None) -> ChatTemplate:
    folder = _folder(Path(tokenizer)) if tokenizer else ModelFolder(path=Path())
    named = {name: token for name, token in (("bos_token", bos_token), ("eos_token", eos_token)) if token is not None}
    folder = structs.replace(folder, special_tokens={**folder.special_tokens, **named}, **named)
    template = load_template(folder, override=path)
    if template is None:
        raise ConfigError([f"{folder.path}: no chat template; name one"])
    return template


def _folder(path: Path) -> ModelFolder:
    return read_folder(path) if path.is_dir() else ModelFolder(path=path.parent)


def _print(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
