"""`smg parse`: what it prints is a contract with outside checks."""

import argparse
import io
import json
import pathlib

import pytest

from smg.parser.command import add_arguments, main

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(arguments))


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def tools(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS), encoding="utf-8")
    return str(path)


def test_text(tmp_path: pathlib.Path, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "output"
    path.write_text(f"<think>t</think>\n\nhi\n{CALL}", encoding="utf-8")
    assert run("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--tools", tools, str(path)) == 0
    (result,) = printed(capsys)
    call_id = result["tool_calls"][0].pop("id")  # type: ignore[index]
    assert result == {
        "content": "hi",
        "reasoning": "t",
        "tool_calls": [{"index": 0, "name": "f", "arguments": '{"a":1}'}],
        "finish_reason": "tool_calls",
    }
    assert len(call_id.removeprefix("call_")) == 24


def test_deltas_and_events(monkeypatch: pytest.MonkeyPatch, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([CALL[:38], CALL[38:]])))
    assert run("--tools", tools, "--events", "-") == 0
    *events, result = printed(capsys)
    assert [event["event"] for event in events] == ["ToolCall", "ToolArguments", "ToolArguments", "Finished"]
    assert result["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--in-think", "--reasoning-parser", "qwen3"], {"reasoning": "[1]", "content": None}),
        (["--reasoning-parser", "qwen3"], {"reasoning": None, "content": "[1]"}),
        (["--tool-call-parser", "hermes"], {"reasoning": None, "content": "[1]"}),
    ],
)
def test_json_that_is_no_list_of_texts_is_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: dict[str, object]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    assert run(*arguments, "-") == 0
    assert printed(capsys) == [{**expected, "tool_calls": [], "finish_reason": "stop"}]


def test_lines(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"id": "a", "raw": CALL, "tool_parser": "hermes", "tools": TOOLS},
        {"id": "b", "deltas": ["x</th", "ink>y"], "reasoning_parser": "qwen3", "prompt_opened_reasoning": True},
        {"id": "c", "raw": "x</think>y", "reasoning_parser": "qwen3"},
        {"id": "d", "raw": CALL, "tool_parser": "hermes", "tools": []},
        {"id": "e", "raw": CALL[:38], "tool_parser": "hermes", "tools": TOOLS, "finish_reason": "length"},
        {"id": "f", "raw": "x", "tool_parser": "hermez"},
        {"id": "g", "raw": 1},
        {"id": 7, "raw": None, "other": "ignored"},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert run("--jsonl", str(path)) == 1
    a, b, c, d, e, f, g, h = printed(capsys)
    assert (a["id"], a["content"], a["finish_reason"]) == ("a", None, "tool_calls")
    assert (b["reasoning"], b["content"]) == (c["reasoning"], c["content"]) == ("x", "y")
    assert (d["content"], d["tool_calls"], d["finish_reason"]) == (CALL, [], "stop")
    assert (e["tool_calls"][0]["arguments"], e["finish_reason"]) == ('{"a', "length")  # type: ignore[index]
    assert f == {"id": "f", "error": "unknown tool parser 'hermez' (did you mean hermes?)"}
    assert g["id"] == "g"
    assert "raw" in str(g["error"])
    assert h == {"id": 7, "content": None, "reasoning": None, "tool_calls": [], "finish_reason": "stop"}


@pytest.mark.parametrize("arguments", [[], ["a", "--jsonl", "b"], ["absent-file"], ["--jsonl", "absent-file"]])
def test_commands_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.startswith("smg parse: ")


def test_unknown_parser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x"))
    assert run("--reasoning-parser", "qwen33", "-") == 2
    assert "did you mean qwen3?" in capsys.readouterr().err


def test_lines_that_are_no_utf_8_are_told(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b'\xff\n{"id": 2, "raw": "ok"}\n')
    assert run("--jsonl", str(file)) == 1
    first, second = printed(capsys)
    assert str(first["error"]).startswith("line 1: ")
    assert (second["id"], second["content"]) == (2, "ok")
