"""Prompts with and without the cache of whole requests (L0): the same, and never another request's."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import packed_ids
from smg.errors import ContextExceeded
from smg.obs.metrics import Meter, render
from smg.obs.shm import Shm
from smg.pipeline import prompt as stage
from smg.pipeline.models import ServedModel
from smg.pipeline.prompt import LOOKUP_CHARACTERS, prepare
from smg.pipeline.prompt_cache import CacheMeter, Prompt, PromptCache, PromptKey
from smg.pipeline.side import INLINE_CHARACTERS, SideThread
from smg.template import load_template
from smg.tokenizer import load_tokenizer, read_folder
from smg.types.job import ChatInput, Content, TextInput, TokenInput
from tests.pipeline.fleet import MODEL
from tests.shm.memory import shared_memory

FOLDER = read_folder(MODEL)
TOKENIZER = load_tokenizer(MODEL, cache_bytes=1 << 20)
SETTINGS = {"limit_bytes": 1 << 26, "limit_entries": 100}


def model(*, cache: bool = True, template: str | None = None, **fields: Any) -> ServedModel:
    folder = msgspec.structs.replace(FOLDER, chat_templates={"default": template}) if template else FOLDER
    known = {
        "id": "m",
        "folder": folder,
        "tokenizer": TOKENIZER,
        "template": load_template(folder, override=None),
        "context_length": 100_000,
        "eos_token_ids": (),
        "reasoning_parser": None,
        "tool_parser": None,
        "longest_token": TOKENIZER.longest_token,
        "repeatable": True,
        "cache": PromptCache(**SETTINGS) if cache else None,
    }
    return ServedModel(**{**known, **fields})


def say(text: str, **fields: Any) -> ChatInput:
    return ChatInput(messages=({"role": "user", "content": text},), **fields)


def prompts(served: ServedModel, *sources: ChatInput | TextInput) -> list[Prompt]:
    async def run() -> list[Prompt]:
        return [await prepare(source, served, allow_special=False) for source in sources]

    return asyncio.run(run())


def plain_ones(found: list[Prompt]) -> list[Prompt]:
    """As if no cache had been there: a kept prompt has its ids also as they stand on the wire."""
    assert all(prompt.packed in (b"", packed_ids(prompt.ids)) for prompt in found)
    return [msgspec.structs.replace(prompt, packed=b"") for prompt in found]


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> list[ChatInput]:
    """What was rendered."""
    rendered: list[ChatInput] = []
    inner = stage._render

    def counting(source: ChatInput, served: ServedModel) -> Any:
        rendered.append(source)
        return inner(source, served)

    monkeypatch.setattr(stage, "_render", counting)
    return rendered


def test_a_request_that_comes_again_is_rendered_twice_and_then_no_more(renders: list[ChatInput]) -> None:
    served = model()
    found = prompts(served, *[say("hello there") for _ in range(5)])
    first, *others = plain_ones(found)
    assert all(other == first for other in others)
    assert found[-1] is found[-2]
    assert found[-1].packed
    assert len(renders) == 2
    assert first == prompts(model(cache=False), say("hello there"))[0]


def test_requests_that_come_once_are_not_kept() -> None:
    served = model()
    prompts(served, *[say(f"hello {i}") for i in range(300)])
    assert served.cache is not None
    assert served.cache.counts().entries == 0


# Another value of each field that is no switch.
OTHER: dict[str, Any] = {
    "messages": ({"role": "user", "content": "hello", "name": "x"},),
    "tools": ({"type": "function", "function": {"name": "f"}},),
    "tool_choice": "none",
    "documents": ({"title": "a", "text": "b"},),
    "template_kwargs": {"enable_thinking": False},
    "chat_template": "default",
    "text": "hello!",
}


def keys(cache: PromptCache, source: ChatInput | TextInput, **fields: Any) -> PromptKey:
    wanted = {"model": 0, "allow_special": False, **fields}
    cache.find(source, **wanted)
    key, _ = cache.find(source, **wanted)
    assert key is not None
    return key


@pytest.mark.parametrize("source", [say("hello"), TextInput(text="hello")], ids=["chat", "text"])
def test_every_field_of_a_request_is_in_its_key(source: ChatInput | TextInput) -> None:
    cache = PromptCache(**SETTINGS)
    seen = {keys(cache, source), keys(cache, source, model=1), keys(cache, source, allow_special=True)}
    assert len(seen) == 3
    for name in source.__struct_fields__:
        old = getattr(source, name)
        value = not old if isinstance(old, bool) else OTHER[name]
        assert value != old
        key = keys(cache, msgspec.structs.replace(source, **{name: value}))
        assert key not in seen, name
        seen.add(key)
    assert keys(cache, source) in seen


def test_order_and_kind_of_values_are_in_the_key() -> None:
    cache = PromptCache(**SETTINGS)
    kwargs: list[dict[str, Any]] = [
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": True, "b": 2},
        {"a": 1.0, "b": 2},
        {"a": "1", "b": 2},
        {"a": None},
    ]
    assert len({keys(cache, say("x", template_kwargs=each)) for each in kwargs}) == len(kwargs)


@pytest.mark.parametrize("kwargs", [{"seed": 1 << 70}, {"text": "\ud800"}])
def test_what_has_no_key_is_prepared_each_time(kwargs: dict[str, Any], renders: list[ChatInput]) -> None:
    prompts(model(), *[say("hello", template_kwargs=kwargs) for _ in range(3)])
    assert len(renders) == 3


CLOCK = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"


def test_what_depends_on_more_than_the_request_is_not_kept(renders: list[ChatInput]) -> None:
    prompts(model(template=CLOCK, repeatable=False), *[say("hello") for _ in range(3)])
    prompts(model(), *[say("hello", chat_template="default") for _ in range(3)])
    assert len(renders) == 6


def test_the_bytes_of_an_input_stand_for_it(renders: list[ChatInput]) -> None:
    served = model()

    async def ask(text: str, content: Content) -> Prompt:
        return await prepare(say(text), served, allow_special=False, content=content)

    async def main() -> None:
        one, other, third = (b"k", b"1" * 900), (b"k", b"2" * 900), (b"l", b"1" * 900)
        for _ in range(3):
            first, second = await ask("one", one), await ask("other", other)
        assert first != second
        assert (await ask("not looked at", one)) is first
        assert len(renders) == 4
        assert (await ask("third", third)) != first

    asyncio.run(main())


def test_a_refusal_is_not_kept() -> None:
    served = model(context_length=12)
    for _ in range(4):
        with pytest.raises(ContextExceeded):
            prompts(served, say("far too many words for such a context, by any count"))


SIZES = {"inline": 10, "beside": INLINE_CHARACTERS + 10, "long": LOOKUP_CHARACTERS + 10}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("make", [say, lambda text: TextInput(text=text)], ids=["chat", "text"])
def test_every_way_gives_the_same(size: int, make: Callable[[str], ChatInput | TextInput]) -> None:
    source = make(("word " * (size // 5 + 1))[:size])
    plain = prompts(model(cache=False), source)[0]
    side = SideThread()
    for served in (model(), model(side=side)):
        assert plain_ones(prompts(served, source, source, source)) == [plain] * 3
        assert served.cache is not None
        assert served.cache.counts().hits == 1
    side.close()


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=80), min_size=1, max_size=4), st.booleans())
def test_a_kept_prompt_is_the_plain_one(texts: list[str], generation: bool) -> None:
    source = ChatInput(messages=tuple({"role": "user", "content": text} for text in texts), add_generation_prompt=generation)
    found = prompts(model(), source, source, source)
    assert plain_ones(found) == [prompts(model(cache=False), source)[0]] * 3


def test_a_completion_gets_its_beginning_token_also_from_the_quick_encoder() -> None:
    library = TOKENIZER._library  # type: ignore[attr-defined]
    for text in ("", "hello", "<|im_start|>x", "Grüße"):
        assert TOKENIZER.encode(text, add_special_tokens=True) == library.encode(text).ids


def test_lookups_are_counted() -> None:
    shm = Shm(shared_memory(rows=2))
    served = model(cache_meter=CacheMeter(Meter(shm, row=1)))
    prompts(served, *[say("hello there " * 100) for _ in range(5)])  # short ones are not looked up in L1
    page = render(shm, gauges=()).decode()
    assert 'smg_tokenizer_cache_lookups_total{level="l0",result="hit"} 3' in page
    assert 'smg_tokenizer_cache_lookups_total{level="l0",result="miss"} 2' in page
    assert 'smg_tokenizer_cache_lookups_total{level="l1"' in page


def test_prompts_that_are_ids_are_not_kept() -> None:
    served = model()
    asyncio.run(prepare(TokenInput(ids=(1, 2, 3)), served, allow_special=False))
    assert served.cache is not None
    assert served.cache.counts().entries == served.cache.counts().misses == 0
