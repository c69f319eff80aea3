"""Child processes: started, waited for, ended."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from smg.sim.processes import Child, ChildFailed, free_port, wait_http

READY = "print('ready grpc://127.0.0.1:1 status http://127.0.0.1:2', flush=True); import time; time.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(process_id: int) -> bool:
    stat = pathlib.Path(f"/proc/{process_id}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_ready_line_is_found_among_others() -> None:
    with Child("engine", command=python(f"print('ready'); print('hello'); {READY}")) as child:
        assert child.wait_ready(within_s=30) == "grpc://127.0.0.1:1"
        assert alive(child.process.pid)
    assert child.process.returncode == -signal.SIGTERM
    assert not child.log.exists()


def test_early_end_is_told_with_the_log() -> None:
    child = Child("engine", command=python("print('no such model'); raise SystemExit(3)"))
    with child, pytest.raises(ChildFailed, match=r"engine ended with status 3:\nno such model"):
        child.wait_ready(within_s=30)


def test_slow_start_is_told() -> None:
    child = Child("engine", command=python("import time; time.sleep(60)"))
    with child, pytest.raises(ChildFailed, match=r"not ready after 0\.2 s"):
        child.wait_ready(within_s=0.2)


def test_child_that_ignores_sigterm_is_killed() -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"
    child = Child("engine", command=python(stubborn))
    child.wait_ready(within_s=30)
    assert child.stop(within_s=0.2) == -signal.SIGKILL
    assert child.stop() == -signal.SIGKILL, "stop may be called again"


def test_child_ends_with_its_parent(tmp_path: pathlib.Path) -> None:
    start = f"child = Child('x', command={python(READY)!r}); child.wait_ready(within_s=30)"
    code = f"from smg.sim.processes import Child; {start}; print(child.process.pid, flush=True); input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert alive(grandchild)
        parent.kill()
    end = time.monotonic() + 30
    while alive(grandchild):
        assert time.monotonic() < end, "the child outlived its parent"
        time.sleep(0.01)


def test_wait_http_tells_what_it_got() -> None:
    child = Child("gateway", command=python("import time; time.sleep(60)"))
    with child, pytest.raises(ChildFailed, match="did not answer with 200"):
        wait_http(child, url=f"http://127.0.0.1:{free_port()}/", within_s=0.2)
