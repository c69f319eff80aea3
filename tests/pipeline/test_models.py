"""The model directory: what is loaded once, where, and what it keeps for the next start."""

import asyncio
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest

from smg.config import Config
from smg.errors import InvalidValue, ModelNotFound, NoEngine
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.pipeline import ModelDirectory
from smg.pipeline.models import ServedModel
from smg.tokenizer.huggingface import HuggingFaceTokenizer
from smg.worker import EngineRecord, EngineState, Snapshot, WorkerView
from smg.worker.snapshot import publish
from tests.pipeline.fleet import MODEL
from tests.shm.memory import shared_memory


def directory(folder: Path, *, state: Path | None = None, **settings: object) -> ModelDirectory:
    config = Config()
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, model_path=str(MODEL), **settings))
    shm = Shm(shared_memory(rows=2))
    epoch = shm.open_engine(0, EngineState.READY)
    record = EngineRecord(slot=0, epoch=epoch, id="e", url="grpc://127.0.0.1:1", runtime="vllm", model="m", context_length=2048)
    publish(Snapshot(engines=(record,)), folder=folder, shm=shm)
    view = WorkerView(shm, row=1, folder=folder)
    return ModelDirectory(config, view, created=0, meter=Meter(shm, row=1), state=state)


def loaded(models: ModelDirectory) -> ServedModel:
    async def run() -> ServedModel:
        first, second = await asyncio.gather(models.get("m"), models.get("m"))
        assert first is second
        await models.close()
        return first

    return asyncio.run(run())


def test_what_was_found_out_is_kept_in_the_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "state"
    served = loaded(directory(tmp_path, state=state))
    assert len(list((state / "tokenizers").iterdir())) == 1
    assert served.repeatable
    assert served.cache is not None
    assert served.tokenizer.cache_counts() is not None


def test_both_caches_can_be_switched_off(tmp_path: Path) -> None:
    served = loaded(directory(tmp_path, tokenizer_cache_enable_l0=False, tokenizer_cache_enable_l1=False))
    assert served.cache is None
    assert served.tokenizer.cache_counts() is None


@pytest.mark.parametrize("source", ["{{ strftime_now('%d') }}", "{{ messages | random }}"])
def test_a_template_that_looks_at_more_than_the_request_is_not_repeatable(source: str, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(source)
    assert not loaded(directory(tmp_path, chat_template=str(template))).repeatable


def test_each_load_has_a_number_of_its_own(tmp_path: Path) -> None:
    models = directory(tmp_path)

    async def run() -> list[int]:
        first = await models.get("m")
        models._served.clear()
        models._loads.clear()
        second = await models.get("m")
        await models.close()
        return [first.number, second.number]

    assert asyncio.run(run()) == [0, 1]


def test_an_engine_that_starts_anew_with_another_context_length(tmp_path: Path) -> None:
    models = directory(tmp_path)

    async def run() -> list[ServedModel]:
        first = await models.get("m")
        view = models._view
        [record] = view.engines("m")
        publish(Snapshot(engines=(msgspec.structs.replace(record, context_length=512),)), folder=tmp_path, shm=view.shm)
        second = await models.get("m")
        assert await models.get("m") is second
        await models.close()
        return [first, second]

    first, second = asyncio.run(run())
    assert (first.context_length, second.context_length) == (2048, 512)
    assert first.number != second.number, "what was kept of the first is not the second's"
    assert first.tokenizer is second.tokenizer


def test_parsers_that_an_engines_labels_name_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from the next request on, and nothing is loaded again."""
    models = directory(tmp_path, state=None)
    record = EngineRecord(slot=0, epoch=1, id="e", url="grpc://127.0.0.1:1", runtime="vllm", model="m", context_length=2048)

    async def run() -> None:
        before = await models.get("m")
        monkeypatch.setattr(models, "_load", None)
        for labels in (("reasoning_parser", "none"), ("tool_parser", "mistral")), (("zone", "a"),):
            publish(Snapshot(engines=(msgspec.structs.replace(record, labels=labels),)), folder=tmp_path, shm=models._view.shm)
            after = await models.get("m")
            named = (after.reasoning_parser, after.tool_parser)
            assert named == ((None, "mistral") if len(labels) == 2 else (before.reasoning_parser, before.tool_parser))
            assert after is await models.get("m")
            assert (after.number == before.number) is (len(labels) == 1)
        await models.close()

    asyncio.run(run())


def test_a_path_that_can_be_none_is_passed_over(tmp_path: Path) -> None:
    models = directory(tmp_path)
    record = EngineRecord(slot=0, epoch=1, id="e", url="grpc://127.0.0.1:1", model="m")
    for path in ("x" * 100_000, "/a\0b", "\ud800"):
        assert models._source(msgspec.structs.replace(record, labels=(("tokenizer_path", path),))) == MODEL


def test_every_thread_that_encodes_is_ready_before_the_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    inner = HuggingFaceTokenizer.encode

    def noting(self: HuggingFaceTokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
        threads.append(threading.current_thread().name)
        return inner(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(HuggingFaceTokenizer, "encode", noting)
    loaded(directory(tmp_path))
    assert threads == ["smg-side", "MainThread"]


def test_names_of_a_model_whose_engines_left_are_known_for_a_while(tmp_path: Path) -> None:
    models = directory(tmp_path, model_alias=("nick=m",))
    shm = models._view.shm
    publish(Snapshot(departed={"m": (("also",), time.time()), "long-gone": ((), time.time() - 1000)}), folder=tmp_path, shm=shm)
    for name in ("m", "also", "nick"):
        with pytest.raises(NoEngine, match="has left") as raised:
            models.resolve(name)
        assert raised.value.retry_after_s
    other = EngineRecord(slot=1, epoch=1, id="f", url="grpc://127.0.0.1:2", runtime="vllm", model="n")
    publish(Snapshot(engines=(other,), departed={"long-gone": ((), time.time() - 1000)}), folder=tmp_path, shm=shm)
    for name in ("m", "long-gone"):
        with pytest.raises(ModelNotFound):
            models.resolve(name)


def test_what_was_loaded_for_a_model_goes_with_it(tmp_path: Path) -> None:
    models = directory(tmp_path)

    async def run() -> None:
        await models.preload()
        assert list(models._served) == ["m"]
        publish(Snapshot(departed={"m": ((), time.time())}), folder=tmp_path, shm=models._view.shm)
        await models.preload()
        assert list(models._served) == ["m"]
        publish(Snapshot(), folder=tmp_path, shm=models._view.shm)
        await models.preload()
        assert not models._served
        assert not models._loads
        await models.close()

    asyncio.run(run())


def test_each_of_several_models_has_its_own_tokenizer_first(tmp_path: Path) -> None:
    models = directory(tmp_path)
    own = tmp_path / "own"
    shutil.copytree(MODEL, own)
    fields = {"runtime": "vllm", "epoch": 1}
    first = EngineRecord(slot=0, id="e", url="grpc://127.0.0.1:1", model="m", **fields)
    second = EngineRecord(slot=1, id="f", url="grpc://127.0.0.1:2", model="n", tokenizer_dir=str(own), **fields)
    publish(Snapshot(engines=(second,)), folder=tmp_path, shm=models._view.shm)
    models._view.refresh()
    assert models._source(second) == MODEL
    publish(Snapshot(engines=(first, second)), folder=tmp_path, shm=models._view.shm)
    models._view.refresh()
    assert (models._source(first), models._source(second)) == (MODEL, own)
    labelled = msgspec.structs.replace(first, labels=(("tokenizer_path", str(own)),))
    assert models._source(labelled) == own


def test_a_model_need_be_named_where_there_are_several_or_the_operator_wants_it(tmp_path: Path) -> None:
    models = directory(tmp_path)
    assert models.resolve("") == "m"
    config = models._config
    models._config = msgspec.structs.replace(config, routing=msgspec.structs.replace(config.routing, enable_igw=True))
    assert models.resolve("m") == "m"
    with pytest.raises(InvalidValue, match="must name a model"):
        models.resolve("")
    models._config = config
    view = models._view
    [record] = view.engines("m")
    other = msgspec.structs.replace(record, slot=1, epoch=view.shm.open_engine(1, EngineState.READY), url="grpc://127.0.0.1:2", model="n")
    publish(Snapshot(engines=(record, other)), folder=tmp_path, shm=view.shm)
    with pytest.raises(InvalidValue, match="must name a model"):
        models.resolve("")


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ((), "no engine is registered yet"),
        ((EngineState.PENDING,), "no engine has answered yet (1 is being tried)"),
        ((EngineState.PENDING, EngineState.FAILED, EngineState.DRAINING), "no engine has answered yet (2 are being tried)"),
    ],
)
def test_what_is_told_before_an_engine_has_answered(states: tuple[EngineState, ...], told: str, tmp_path: Path) -> None:
    shm = Shm(shared_memory(rows=2))
    epochs = [shm.open_engine(slot, state) for slot, state in enumerate(states)]
    records = tuple(EngineRecord(slot=slot, epoch=epoch, id="e", url=f"grpc://e:{slot}") for slot, epoch in enumerate(epochs))
    publish(Snapshot(engines=records), folder=tmp_path, shm=shm)
    models = ModelDirectory(Config(), WorkerView(shm, row=1, folder=tmp_path), created=0, meter=Meter(shm, row=1), state=None)
    with pytest.raises(NoEngine) as caught:
        models.resolve("m")
    assert (caught.value.message, caught.value.retry_after_s) == (told, 1)
