"""A short run of the fuzzer: `bench/fuzz/run.py` has the long ones, and those under sanitizers."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_twenty_thousand_inputs() -> None:
    done = subprocess.run(
        [sys.executable, "bench/fuzz/run.py", "--count", "20000"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [int(number) for number in re.findall(r"no fault; (\d+) results", done.stdout)]
    assert len(results) == 5
    assert min(results) > 500  # the inputs are not so odd that nothing comes of them
