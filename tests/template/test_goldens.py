"""Every render that transformers gave for the shared templates, byte for byte, and every refusal with its words; then the request path."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from smg.errors import SmgError
from smg.template import ChatTemplate, encode_rendered
from smg.tokenizer import Tokenizer, load_tokenizer
from smg.types.job import ChatInput

OWN = Path(__file__).parents[1] / "data" / "template" / "goldens.json"
# The templates call these filters of other runtimes, which transformers does not have; ours renders (known-bugs B74).
OUR_FILTERS = "No filter named 'from_json' found."
# Cases in which a request is mended before it is rendered, so that it may differ from what transformers gives for the raw messages.
MENDED = {"developer_role", "image_parts", "text_parts", "tool_call_null_content", "tool_call_string_args"}


class Golden(Struct, frozen=True):
    """One conversation under one template: `expected` has `prompt` (and `token_ids` where a tokenizer is there) or `error`."""

    template: str
    case: str
    chat: ChatInput
    expected: dict[str, Any]


def chat_of(case: dict[str, Any]) -> ChatInput:
    return ChatInput(
        messages=tuple(case["messages"]),
        tools=tuple(case.get("tools") or ()),
        documents=tuple(case.get("documents") or ()),
        template_kwargs=case.get("kwargs") or {},
        add_generation_prompt=case.get("add_generation_prompt", True),
    )


class Goldens:
    """The shared golden files with their templates."""

    def __init__(self, shared: Path) -> None:
        self._folder = shared / "fixtures"
        cases = json.loads((self._folder / "chat_goldens" / "cases.json").read_text())
        self.now = datetime.fromisoformat(cases["now"])
        self._cases = cases["cases"]
        self._loaded = list(self._load())

    def __iter__(self) -> Iterator[tuple[dict[str, Any], ChatTemplate, list[Golden]]]:
        return iter(self._loaded)

    def _load(self) -> Iterator[tuple[dict[str, Any], ChatTemplate, list[Golden]]]:
        for file in sorted((self._folder / "chat_goldens").glob("*__*.json")):
            golden = json.loads(file.read_text())
            source = (self._folder / "chat_templates" / f"{golden['template']}.jinja").read_text()
            specials = {name: golden[name] for name in ("bos_token", "eos_token") if golden[name] is not None}
            listed = [Golden(golden["template"], name, chat_of(self._cases[name]), case) for name, case in golden["cases"].items()]
            yield golden, ChatTemplate({"default": source}, special_tokens=specials), listed


@pytest.fixture(scope="module")
def goldens(shared: Path) -> Goldens:
    return Goldens(shared)


def exactly(template: ChatTemplate, chat: ChatInput, now: datetime) -> dict[str, str]:
    try:
        return {"prompt": template.render_exactly(chat, now=now)}
    except SmgError as error:
        return {"error": error.message}


def agrees(result: dict[str, str], expected: dict[str, Any]) -> bool:
    if "prompt" in expected:
        return result.get("prompt") == expected["prompt"]
    reason = expected["error"].split(": ", 1)[1]
    return reason == OUR_FILTERS or ("error" in result and reason in result["error"])


def test_every_shared_golden_exactly(goldens: Goldens) -> None:
    renders: Counter[str] = Counter()
    wrong: list[str] = []
    for _, template, listed in goldens:
        for golden in listed:
            result = exactly(template, golden.chat, goldens.now)
            renders["error" if "error" in golden.expected else "prompt"] += 1
            if not agrees(result, golden.expected):
                wrong.append(f"{golden.template} {golden.case}: {result} instead of {golden.expected}"[:500])
    assert not wrong, f"{len(wrong)} of {renders.total()}: {wrong[:5]}"
    assert renders["prompt"] >= 2345
    assert renders["error"] >= 355


def test_requests_differ_only_where_they_are_mended(goldens: Goldens) -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for _, template, listed in goldens:
        for golden in listed:
            if golden.case in MENDED:
                continue
            try:
                result = {"prompt": template.render(golden.chat, now=goldens.now).text}
            except SmgError as error:
                result = {"error": error.message}
            outcomes["error" if "error" in golden.expected else "prompt"] += 1
            if not agrees(result, golden.expected):
                wrong.append(f"{golden.template} {golden.case}: {result} instead of {golden.expected}"[:500])
    assert not wrong, f"{len(wrong)} of {outcomes.total()}: {wrong[:5]}"
    assert outcomes["prompt"] > 1900


def test_mended_requests_lose_no_text(goldens: Goldens) -> None:
    """What the client wrote is in the prompt, and no list of parts is printed as one."""
    wanted = {"developer_role": "Be brief.", "text_parts": "Second part."}
    for _, template, listed in goldens:
        for golden in listed:
            if golden.case not in wanted or "kimi_audio" in golden.template:
                continue  # that template writes no message but the last audio
            try:
                text = template.render(golden.chat, now=goldens.now).text
            except SmgError:
                assert "error" in golden.expected
                continue
            assert "{'type'" not in text
            if golden.case == "text_parts":
                assert "Second part." in text, golden.template


def test_every_id_golden(goldens: Goldens, real: Callable[[str], Tokenizer]) -> None:
    equal = 0
    for golden, template, listed in sorted(goldens, key=lambda each: str(each[0]["tokenizer"])):
        name = golden["tokenizer"]
        if name is None:
            continue
        tokenizer = real({"llama-4": "llama-4-tiktoken"}.get(name, name))
        for case in listed:
            if "token_ids" not in case.expected:
                continue
            text = template.render_exactly(case.chat, now=goldens.now)
            assert tokenizer.encode(text) == case.expected["token_ids"], f"{case.template} {case.case}"
            equal += 1
    assert equal >= 600


def test_own_goldens() -> None:
    """A small set that is there in every checkout: templates of our own and what transformers 5.24's environment gives for them."""
    data = json.loads(OWN.read_text())
    for entry in data["goldens"]:
        template = ChatTemplate({"default": entry["template"]}, special_tokens=data["special_tokens"])
        result = exactly(template, chat_of(entry["case"]), datetime.fromisoformat(data["now"]))
        assert agrees(result, entry["expected"]), entry["name"]


def test_encoding_a_rendered_prompt_adds_no_bos(shared: Path) -> None:
    folder = shared / "fixtures" / "tokenizers" / "llama-3.1"
    tokenizer = load_tokenizer(folder)
    template = ChatTemplate({"default": "{{ bos_token }}{{ messages[0].content }}"}, special_tokens={"bos_token": "<|begin_of_text|>"})
    rendered = template.render(ChatInput(messages=({"role": "user", "content": "Hi"},)))
    ids = encode_rendered(tokenizer, rendered)
    assert ids.count(128000) == 1
    assert tokenizer.encode("Hi", add_special_tokens=True) == ids
