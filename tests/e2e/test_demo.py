"""The demo, as a new user runs it."""

import os
import signal
import subprocess
import sys
import uuid

import pytest

from tests.e2e.fleet import TAG, running_with_tag, wait_until

COMMAND = [sys.executable, "-m", "smg.sim.demo"]
ANSWER_S = 100


def test_demo_ends_by_itself() -> None:
    tag = uuid.uuid4().hex
    done = subprocess.run([*COMMAND, "--once"], env={**os.environ, TAG: tag}, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("request "))
    rows = [line.split() for line in lines[head + 1 : head + 5]]
    assert all(row[-5] != "0.0" for row in rows), "tokens came with a rate"
    assert any(int(row[-2]) > 0 for row in rows), "a repeated request shows cached tokens"
    assert "curl" not in done.stdout, "a gateway that is gone cannot be asked"
    assert running_with_tag(tag) == []


def test_the_line_to_try_works_until_the_demo_is_told_to_end() -> None:
    tag = uuid.uuid4().hex
    with subprocess.Popen(COMMAND, env={**os.environ, TAG: tag}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            command = next(line for line in process.stdout if line.startswith("curl "))
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        finally:
            process.terminate()
            process.wait(timeout=30)  # before its pipe is closed, into which it says that it ends
    assert process.returncode == 0
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("data: [DONE]")
    wait_until(lambda: not running_with_tag(tag), what=f"nothing left behind: {running_with_tag(tag)}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_demo_leaves_nothing_behind(number: signal.Signals) -> None:
    tag = uuid.uuid4().hex
    with subprocess.Popen(COMMAND, env={**os.environ, TAG: tag}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("Serving"):
                    break
            process.send_signal(number)
            process.wait(timeout=30)
        finally:
            process.kill()  # does nothing to one that has ended; without it a failure here would wait for ever
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    wait_until(lambda: not running_with_tag(tag), what=f"nothing left behind: {running_with_tag(tag)}")
