"""Every recorded output of the shared fixtures, over 40 families and variants, against the expected values in the file."""

import json
import pathlib
from typing import Any

import pytest

from smg.parser import TOOLS
from tests.parser.oracle import Setting, check_splits


def test_records(shared: pathlib.Path) -> None:
    folder = shared / "fixtures" / "raw_outputs"
    tools = tuple(json.loads((folder / "tools.json").read_text(encoding="utf-8")))
    lines = (folder / "raw_outputs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 96
    faults = [fault for line in lines if (fault := fault_of(json.loads(line), tools))]
    assert not faults, "\n".join(faults)


def fault_of(record: dict[str, Any], tools: tuple[Any, ...]) -> str:
    """What is wrong with our reading of a record; empty when nothing is."""
    tool = record.get("tool_parser", "hermes")
    reasoning = record.get("reasoning_parser") or TOOLS.get(tool).thinks or None
    setting = Setting(tool=tool, reasoning=reasoning, tools=tools, in_think=record["prompt_opened_reasoning"])
    outcome = check_splits(setting, record["raw"], cuts=30)
    expected = record["expected"]
    got = {
        "content": outcome.content or None,
        "reasoning": outcome.reasoning or None,
        "tool_calls": [{"name": call.name, "arguments": call.value(), "id": call.id} for call in outcome.calls],
    }
    for call, made in zip(expected["tool_calls"], got["tool_calls"], strict=False):
        call.setdefault("id", made["id"])  # where the record names none, any id is right
    wanted = {key: expected[key] for key in got}
    return "" if got == wanted else f"{record['id']}: {got} instead of {wanted}"


def test_references_disagree_only_where_the_record_explains_it(shared: pathlib.Path) -> None:
    """vLLM's own parses agree with most expected values; where not, the record says why. A count, to notice a changed fixture."""
    path = shared / "fixtures" / "raw_outputs" / "vllm_0.32_observed.json"
    if not path.exists():
        pytest.skip("no observations of vLLM")
    observed = json.loads(path.read_text(encoding="utf-8"))["observations"]
    assert sum(bool(one.get("agrees")) for one in observed) >= 60
