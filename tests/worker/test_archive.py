"""Archives from engines: kept once, and never outside their folder."""

import io
import pathlib
import stat
import zipfile

import pytest

from smg.errors import EngineProtocol
from smg.worker.archive import unpack
from tests.worker.fake import archive


def test_files_are_kept_under_their_sum(tmp_path: pathlib.Path) -> None:
    data = archive({"tokenizer.json": b"{}", "sub/a.txt": b"a"})
    folder = unpack(data, folder=tmp_path)
    assert folder.parent == tmp_path
    assert len(folder.name) == 64
    assert (folder / "tokenizer.json").read_bytes() == b"{}"
    assert (folder / "sub" / "a.txt").read_bytes() == b"a"
    stamp = (folder / "tokenizer.json").stat().st_mtime_ns
    assert unpack(data, folder=tmp_path) == folder
    assert (folder / "tokenizer.json").stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [folder]


def test_a_packed_folder_is_entered(tmp_path: pathlib.Path) -> None:
    folder = unpack(archive({"model/tokenizer.json": b"{}", "model/config.json": b"{}"}), folder=tmp_path)
    assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "a/.."])
def test_names_that_lead_outside_are_refused(tmp_path: pathlib.Path, name: str) -> None:
    inside = tmp_path / "kept"
    with pytest.raises(EngineProtocol, match="outside"):
        unpack(archive({"fine": b"", name: b"x"}), folder=inside)
    assert list(inside.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_links_are_refused(tmp_path: pathlib.Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(entry, "/etc/passwd")
    with pytest.raises(EngineProtocol, match="outside"):
        unpack(data.getvalue(), folder=tmp_path)


def test_a_bomb_is_stopped_while_it_unpacks(tmp_path: pathlib.Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("zeros", bytes(5_000_000))
    with pytest.raises(EngineProtocol, match="too large"):
        unpack(data.getvalue(), folder=tmp_path, most_bytes=1_000_000)
    assert list(tmp_path.iterdir()) == []


def test_too_many_files_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EngineProtocol, match="too many"):
        unpack(archive({f"f{index}": b"" for index in range(1001)}), folder=tmp_path)


@pytest.mark.parametrize("data", [b"", b"no zip", archive({"a": b"a" * 1000})[:-30]])
def test_what_is_no_zip_is_refused(tmp_path: pathlib.Path, data: bytes) -> None:
    with pytest.raises(EngineProtocol, match="cannot be read"):
        unpack(data, folder=tmp_path)


@pytest.mark.parametrize("second", ["a", "a/b"])
def test_entries_in_each_other_s_way_are_refused(tmp_path: pathlib.Path, second: str) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made, pytest.warns() if second == "a" else _quiet():
        made.writestr("a", b"1")
        made.writestr(second, b"2")
    with pytest.raises(EngineProtocol, match="cannot be read"):
        unpack(data.getvalue(), folder=tmp_path)


class _quiet:
    def __enter__(self) -> None: ...
    def __exit__(self, *arguments: object) -> None: ...
