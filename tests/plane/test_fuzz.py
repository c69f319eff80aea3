"""A short run of the fuzzer: `bench/fuzz/run.py` has the long ones, and those under sanitizers."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_twenty_thousand_inputs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/fuzz/run.py", "--count", "20000"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("no fault") == 3
