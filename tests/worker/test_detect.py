"""Detection against simulated engines of every protocol."""

import asyncio
import pathlib

import msgspec
import pytest

from smg.config import Config
from smg.config.tree import Engines
from smg.errors import EngineProtocol, EngineUnavailable, Unimplemented
from smg.sim.server import start_sim
from smg.tokenizer import read_folder
from smg.worker import Detector, EngineRecord

PROTOCOLS = ("vllm", "sglang", "trtllm", "mlx", "tokenspeed")


def record(url: str, backend: str) -> EngineRecord:
    return EngineRecord(slot=0, epoch=1, id="x", url=url, backend=backend)


async def describe(config: Config, url: str, folder: pathlib.Path) -> EngineRecord:
    detector = Detector(config, state_dir=folder)
    engine, found = await detector.open(record(url, config.engines.backend))
    try:
        return await detector.describe(engine, found)
    finally:
        await engine.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_runtime_model_and_tokenizer(protocol: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> EngineRecord:
        sim = await start_sim(protocol=protocol)
        try:
            return await describe(Config(), sim.url, tmp_path)
        finally:
            await sim.close()

    with monkeypatch.context() as patch:
        patch.setattr("smg.worker.detect.os.access", lambda path, mode: False)  # as if the engine ran on another machine
        found = asyncio.run(main())
    assert found.runtime == protocol
    assert found.model == ("model" if protocol == "mlx" else "sim-model")  # the last part of a path says nothing of the machine
    assert found.context_length > 0
    assert found.tokenizer_dir is not None
    assert found.tokenizer_dir.startswith(str(tmp_path / "tokenizers"))
    assert read_folder(pathlib.Path(found.tokenizer_dir)).eos_token_ids


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("protocol", "can"), [("vllm", True), ("sglang", True), ("tokenspeed", True), ("trtllm", False), ("mlx", False)])
def test_a_role_that_an_engine_cannot_have(protocol: str, can: bool, role: str, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        sim = await start_sim(protocol=protocol)
        detector = Detector(Config(), state_dir=tmp_path)
        engine, found = await detector.open(msgspec.structs.replace(record(sim.url, "auto"), role=role))
        try:
            if can:
                assert (await detector.describe(engine, found)).model == "sim-model"
            else:
                with pytest.raises(Unimplemented, match=f"{protocol} engines cannot compute prefill and decode apart"):
                    await detector.describe(engine, found)
        finally:
            await engine.close()
            await sim.close()

    asyncio.run(main())


def test_a_configured_backend_is_not_asked_for(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        sim = await start_sim(protocol="vllm")
        try:
            with pytest.raises(EngineProtocol):
                await describe(Config(engines=Engines(backend="mlx")), sim.url, tmp_path)
        finally:
            await sim.close()

    asyncio.run(main())


def test_nobody_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EngineUnavailable):
        asyncio.run(describe(Config(), "grpc://127.0.0.1:1", tmp_path))
