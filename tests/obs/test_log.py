"""Lines of the log."""

import json
import logging
import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

from smg.config.tree import Logging
from smg.obs.log import JournalFormatter, JsonFormatter, TextFormatter, start_logging


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    made = logging.getLogger()
    handlers, level = made.handlers[:], made.level
    levels = {name: logging.getLogger(name).level for name in ("_granian", "granian", "asyncio", "grpc", "uvloop")}
    yield made
    for handler in made.handlers:
        if handler not in handlers:
            handler.close()
    made.handlers[:] = handlers
    made.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def record(message: str = "hello %s", *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("smg.test", logging.WARNING, __file__, 1, message, arguments or ("you",), None)
    made.created = 0.5
    vars(made).update(fields)
    return made


def test_text_has_time_level_process_and_fields() -> None:
    line = TextFormatter("worker-1").format(record(request_id="r1"))
    assert line == "1970-01-01T00:00:00.500Z WARNING worker-1 smg.test: hello you request_id=r1"


def test_json_has_the_same() -> None:
    line = json.loads(JsonFormatter("worker-1").format(record(request_id="r1", where=pathlib.Path("x"))))
    assert line == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "process": "worker-1",
        "logger": "smg.test",
        "message": "hello you",
        "request_id": "r1",
        "where": "x",
    }


@pytest.mark.parametrize("name", ["api_key", "Authorization", "db_password", "client_secret", "Set-Cookie", "bearer"])
def test_secrets_are_not_written(name: str) -> None:
    for formatter in (TextFormatter("w"), JsonFormatter("w")):
        line = formatter.format(record(**{name: "Bearer sk-1"}))
        assert "sk-1" not in line
        assert "***" in line


def test_what_a_client_chose_begins_no_line() -> None:
    line = TextFormatter("w").format(record("model %s", "a\n1970 FAKE", path="x\r\ny"))
    assert len(line.splitlines()) == 1
    assert "a\\n1970 FAKE" in line


def test_a_traceback_follows_or_is_a_field() -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        made = record()
        made.exc_info = sys.exc_info()
    assert "KeyError: 'gone'" in TextFormatter("w").format(made).splitlines()[-1]
    assert "KeyError: 'gone'" in json.loads(JsonFormatter("w").format(made))["traceback"]


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_file_a_day_besides_standard_error(
    tmp_path: pathlib.Path, root: logging.Logger, capfd: pytest.CaptureFixture[str], in_thread: bool
) -> None:
    folder = tmp_path / "logs"
    start_logging(Logging(log_dir=str(folder), log_level="warn"), process="w", in_thread=in_thread)
    root.info("not this")
    root.warning("this", extra={"request_id": "r1"})
    for handler in root.handlers:
        handler.close()
    (file,) = folder.iterdir()
    assert file.name.startswith("smg.20")
    assert file.name.endswith(".log")
    (line,) = file.read_text().splitlines()
    assert line.endswith("WARNING w root: this request_id=r1")
    assert line in capfd.readouterr().err


def test_a_second_start_replaces_the_first(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    for process in ("one", "two"):
        start_logging(Logging(log_json=True), process=process, in_thread=False)
    root.error("once")
    assert [json.loads(line)["process"] for line in capfd.readouterr().err.splitlines()] == ["two"]


def test_a_queue_that_is_full_loses_records_and_does_not_block(root: logging.Logger) -> None:
    start_logging(Logging(), process="w", in_thread=True)
    (handler,) = root.handlers
    handler._listener.stop()  # type: ignore[attr-defined]  # nobody reads any more
    for _ in range(10_100):
        root.error("x")
    assert handler.queue.full()  # type: ignore[attr-defined]
    handler._listener = None  # type: ignore[attr-defined]


def test_journal_line_has_its_priority_and_no_time(root: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    def in_use(config: Logging) -> logging.Formatter | None:
        start_logging(config, process="w", in_thread=False)
        return root.handlers[0].formatter

    lines = JournalFormatter("worker-1").format(
        logging.makeLogRecord({"name": "n", "levelno": logging.ERROR, "levelname": "ERROR", "msg": "a"})
    )
    assert lines == "<3>worker-1 n: a"
    with (tmp_path / "journal").open("w") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setattr("smg.obs.log.STDERR", stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert isinstance(in_use(Logging()), JournalFormatter)
        assert not isinstance(in_use(Logging(log_json=True)), JournalFormatter)
        monkeypatch.setenv("JOURNAL_STREAM", "1:1")
        assert not isinstance(in_use(Logging()), JournalFormatter)
