"""The watched file of engines."""

import asyncio
import os
import pathlib
from collections.abc import Awaitable, Callable

import pytest

from smg.worker import EngineSpec, HealthEdit
from smg.worker.discovery import file
from smg.worker.discovery.file import WorkersFile, read_workers
from tests.worker.fake import until

GOOD = '[[workers]]\nurl = "grpc://a:1"\n\n[[workers]]\nurl = "grpc://b:1"\nworker_type = "decode"\n'


class Heard:
    """What the watch told."""

    def __init__(self) -> None:
        self.found: list[list[EngineSpec]] = []
        self.failures = 0

    def fail(self) -> None:
        self.failures += 1

    def urls(self) -> list[str]:
        return [spec.url for spec in self.found[-1]] if self.found else []


def watched(path: pathlib.Path, scene: Callable[[Heard], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LOOK_S", 0.01)

    async def main() -> None:
        heard = Heard()
        task = asyncio.create_task(WorkersFile(str(path), found=heard.found.append, failed=heard.fail).run())
        try:
            await scene(heard)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_every_field(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "workers.toml"
    path.write_text("""
        [[workers]]
        url = "grpc://a:1/"
        runtime_type = "sglang"
        worker_type = "prefill"
        bootstrap_port = 8998
        api_key = "k"
        priority = 3
        models = [{id = "m", aliases = ["n"], reasoning_parser = "qwen3"}]
        labels = {zone = "a"}
        health = {check_interval_secs = 2}
    """)
    assert read_workers(path) == [
        EngineSpec(
            url="grpc://a:1",
            source="file",
            backend="sglang",
            role="prefill",
            bootstrap_port=8998,
            api_key="k",
            priority=3,
            served_as="m",
            served_aliases=("n",),
            labels=(("reasoning_parser", "qwen3"), ("zone", "a")),
            health=HealthEdit(check_interval_s=2),
        )
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[workers]]\nurl = "a:1"', "worker 1: url: 'a:1' has no scheme"),
        (GOOD + '[[workers]]\nurl = "grpc://a:1"', "worker 3: 'grpc://a:1' is there twice"),
        (GOOD + "[[workers]]\n", "worker 3: .*url"),
        ('[[workers]]\nurl = "grpc://a:1"\nlables = {}', "worker 1: unknown key 'lables'"),
        ('[[workers]]\nurl = "grpc://a:1"\nhealth = {check_interval = 2}', "worker 1: .*unknown field `check_interval`"),
        ('[[workers]]\nurl = "grpc://a:1"\npriority = "high"', "worker 1: .*priority"),
        ('[[worker]]\nurl = "grpc://a:1"', "worker"),
        ("[[workers]", "Expected|Expecting"),
        ("workers = 3", "array"),
        ("\udcff", "utf-8"),
        ("#" * (file.MOST_BYTES + 1), "more than"),
        ("workers = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: pathlib.Path, text: str, says: str) -> None:
    path = tmp_path / "workers.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=says):
        read_workers(path)


def test_changes_are_seen_and_a_broken_file_keeps_the_last_good_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "workers.toml"

    async def scene(heard: Heard) -> None:
        await until(lambda: "cannot be found" in caplog.text)
        path.write_text(GOOD)
        await until(lambda: heard.urls() == ["grpc://a:1", "grpc://b:1"])
        path.write_text(GOOD + "[[workers]\n")
        await until(lambda: heard.failures == 1)
        assert len(heard.found) == 1
        assert "what it said before stays" in caplog.text
        replacement = tmp_path / "new"
        replacement.write_text('[[workers]]\nurl = "grpc://c:1"\n')
        os.replace(replacement, path)
        await until(lambda: heard.urls() == ["grpc://c:1"])
        path.unlink()
        await asyncio.sleep(0.1)
        assert heard.urls() == ["grpc://c:1"]
        path.write_text("")
        await until(lambda: heard.found[-1] == [])

    watched(path, scene, monkeypatch)
    assert caplog.text.count("what it said before stays") == 3


def test_a_file_that_is_being_written_is_not_read_in_the_middle(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "workers.toml"
    path.write_text(GOOD)
    stamps = iter([(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 1, 1), (4, 1, 1), *[(4, 1, 1)] * 100])
    looks: list[int] = []
    monkeypatch.setattr(WorkersFile, "_stamp", lambda self: looks.append(1) or next(stamps))

    async def scene(heard: Heard) -> None:
        await until(lambda: len(looks) > 8)
        assert len(heard.found) == 2  # at the start, and once nothing changed any more

    watched(path, scene, monkeypatch)


def test_a_file_that_comes_late_is_not_read_in_the_middle_either(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "workers.toml"
    path.write_text(GOOD)
    stamps = iter([None, None, (1, 1, 1), (1, 2, 1), *[(1, 3, 1)] * 100])
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(WorkersFile, "_stamp", lambda self: next(stamps))
    take = WorkersFile._take
    monkeypatch.setattr(WorkersFile, "_take", lambda self, stamp: seen.append(stamp) or take(self, stamp))

    async def scene(heard: Heard) -> None:
        await until(lambda: heard.found != [])
        assert seen == [(1, 3, 1)]

    watched(path, scene, monkeypatch)


def test_a_file_that_cannot_be_read_is_tried_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rights may be mended, which its times and size do not tell."""
    path = tmp_path / "workers.toml"
    path.write_text(GOOD)

    def refuse(path: pathlib.Path) -> list[EngineSpec]:
        raise PermissionError(13, "Permission denied", str(path))

    async def scene(heard: Heard) -> None:
        monkeypatch.setattr(file, "read_workers", refuse)
        await until(lambda: heard.failures >= 2)
        monkeypatch.setattr(file, "read_workers", read_workers)
        await until(lambda: heard.urls() == ["grpc://a:1", "grpc://b:1"])

    watched(path, scene, monkeypatch)
    assert caplog.text.count("Permission denied") == 1


def test_a_link_that_is_turned_is_seen(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workers.toml").write_text(f'[[workers]]\nurl = "grpc://a:{port}"\n')
    (tmp_path / "data").symlink_to("one")

    async def scene(heard: Heard) -> None:
        await until(lambda: heard.urls() == ["grpc://a:1"])
        (tmp_path / "new").symlink_to("two")
        os.replace(tmp_path / "new", tmp_path / "data")
        await until(lambda: heard.urls() == ["grpc://a:2"])

    watched(tmp_path / "data" / "workers.toml", scene, monkeypatch)
