"""Logging of a process: records in, lines of text or JSON out, to standard error and, if wished, to a file a day.

When standard error is the journal, each line of text begins with its priority, see sd-daemon(3), and leaves the time to the journal.

Called once by each process of the gateway. `in_thread=True` moves formatting and writing off the event loop; the supervisor, which forks,
writes in place. Fields come by `extra={...}`; a value whose field is named like a secret is not written.
"""

import contextlib
import datetime
import io
import logging
import logging.handlers
import os
import queue
import traceback
from pathlib import Path

import msgspec

from smg.config.tree import Logging

__all__ = ["JournalFormatter", "JsonFormatter", "TextFormatter", "start_logging"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
SECRET_WORDS = ("secret", "password", "api_key", "authorization", "cookie", "bearer")
STDERR = 2
LONGEST_QUEUE = 10_000
# Libraries that say at INFO what only their own developers need.
QUIET = ("_granian", "granian", "asyncio", "grpc", "uvloop")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = {}
    for name, value in vars(record).items():
        if name not in STANDARD and not name.startswith("_"):
            found[name] = "***" if any(word in name.lower() for word in SECRET_WORDS) else value
    return found


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return record.exc_text or ""
    text = io.StringIO()
    traceback.print_exception(*record.exc_info, file=text)
    return text.getvalue().rstrip("\n")


def _one_line(text: str) -> str:
    """Clients choose parts of what is logged; a line break in it must not begin a line of its own."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if "\n" in text or "\r" in text else text


class TextFormatter(logging.Formatter):
    """`TIME LEVEL PROCESS logger: message key=value`, with a traceback below where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Gives the line of a record."""
        fields = "".join(f" {name}={_one_line(str(value))}" for name, value in _fields(record).items())
        trace = _trace(record)
        line = f"{_time(record)} {record.levelname} {self._process} {record.name}: {_one_line(record.getMessage())}{fields}"
        return f"{line}\n{trace}" if trace else line


class JournalFormatter(TextFormatter):
    """`<PRIORITY>PROCESS logger: message key=value`; each line of a traceback has the priority too, since the journal takes lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Gives the lines of a record."""
        text = super().format(record).split(" ", 2)[2]
        priority = next(number for level, number in PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def _is_journal(fd: int) -> bool:
    """True when a descriptor is the one that systemd connected to the journal: JOURNAL_STREAM in systemd.exec(5)."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    if not inode:
        return False
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (str(status.st_dev), str(status.st_ino)) == (device, inode)


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Gives the line of a record; values that JSON does not know are given as text."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if trace := _trace(record):
            line["traceback"] = trace
        return msgspec.json.encode(line, enc_hook=str).decode()


class DailyFile(logging.Handler):
    """Appends to `smg.YYYY-MM-DD.log`. Each process opens the file of the day itself, and a line is one write, so all may share it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._day = ""
        self._fd = -1

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line; a disk that is full loses it."""
        line = self.format(record) + "\n"
        with contextlib.suppress(OSError):
            os.write(self._open(_time(record)[:10]), line.encode("utf-8", "backslashreplace"))

    def _open(self, day: str) -> int:
        if day != self._day:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = os.open(self._folder / f"smg.{day}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._day = day
        return self._fd


class BoundedQueueHandler(logging.handlers.QueueHandler):
    """Drops records when the writing thread is too far behind, instead of growing. `close` (by `logging.shutdown`) writes what is left."""

    def __init__(self, records: "queue.Queue[logging.LogRecord]", listener: logging.handlers.QueueListener) -> None:
        super().__init__(records)
        self._listener: logging.handlers.QueueListener | None = listener
        listener.start()

    def close(self) -> None:
        """Writes what is queued and ends the thread."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        super().close()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queues one record, if there is room."""
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Leaves the record as it is: it stays in this process."""
        return record


def start_logging(config: Logging, *, process: str, in_thread: bool) -> None:
    """Sets up the root logger, replacing what an earlier call or the parent process set up."""
    formatter = JsonFormatter(process) if config.log_json else TextFormatter(process)
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if config.log_dir:
        folder = Path(config.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        handlers.append(DailyFile(folder))
    for handler in handlers:
        handler.setFormatter(formatter)
    if not config.log_json and _is_journal(STDERR):
        handlers[0].setFormatter(JournalFormatter(process))
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(LEVELS[config.log_level])
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if config.log_level == "debug" else logging.WARNING)
    if not in_thread:
        for handler in handlers:
            root.addHandler(handler)
        return
    records: queue.Queue[logging.LogRecord] = queue.Queue(LONGEST_QUEUE)
    root.addHandler(BoundedQueueHandler(records, logging.handlers.QueueListener(records, *handlers)))
