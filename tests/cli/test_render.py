"""`smg render`: the contract of its input, output and exit codes. What templates make of messages is tested in tests/template."""

import io
import json
from pathlib import Path

import pytest

from smg import cli
from smg.tokenizer import load_tokenizer

MODEL = Path(cli.__file__).parent / "sim" / "data" / "model"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools={{ tools | length }}\n{% endif %}{% if documents %}documents={{ documents | length }}\n{% endif %}"
    "{{ strftime_now('%Y-%m-%d') }}{{ mood }}{% if add_generation_prompt %} assistant:{% endif %}{{ eos_token }}"
)
REFUSING = "{{ raise_exception('no ' + messages[0].role + ' here') }}"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "refusing.jinja").write_text(REFUSING)
    (tmp_path / "chat.json").write_text(json.dumps({"messages": HELLO, "model": "ignored"}))
    (tmp_path / "tools.json").write_text(json.dumps([TOOL, TOOL]))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, object]], str]:
    code = cli.main(["render", *map(str, arguments)])
    told = capsys.readouterr()
    return code, [json.loads(line) for line in told.out.splitlines()], told.err


def test_the_models_own_template_and_ids(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, [answer], err = run(capsys, "--tokenizer", MODEL, files / "chat.json")
    assert (code, err, list(answer)) == (0, "", ["prompt", "tokens"])
    assert "<|im_start|>user\nHello<|im_end|>" in str(answer["prompt"])
    assert answer["tokens"] == load_tokenizer(MODEL).encode(str(answer["prompt"]))


@pytest.mark.parametrize("flags", [(), ("--allow-special-tokens-in-text",)])
def test_text_of_a_message_is_no_control_token_unless_allowed(
    flags: tuple[str, ...], files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def encode(tokenizer: object, rendered: object, *, allow_special: bool) -> list[int]:
        asked.append(allow_special)
        return [1]

    monkeypatch.setattr("smg.commands.render.encode_rendered", encode)
    _, [answer], _ = run(capsys, "--tokenizer", MODEL, *flags, files / "chat.json")
    assert asked == [bool(flags)]
    assert answer["tokens"] == [1]


def test_everything_that_can_be_given(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO((files / "chat.json").read_text()))
    given = ("--chat-template", files / "template.jinja", "--tools", files / "tools.json", "--now", "2026-01-15T12:00:00")
    code, [answer], _ = run(capsys, "--tokenizer", MODEL, *given, "--kwargs", '{"mood": " glad"}', "-")
    assert code == 0
    assert "user: Hello\ntools=2\n2026-01-15 glad assistant:" in str(answer["prompt"])


def test_a_refusal_is_an_error_with_the_templates_own_text(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, [answer], err = run(capsys, "--tokenizer", MODEL, "--chat-template", files / "refusing.jinja", files / "chat.json")
    assert (code, answer, err) == (1, {"error": "no user here"}, "")


def test_exactly_nothing_is_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template, cases = tmp_path / "own.jinja", tmp_path / "cases.jsonl"
    template.write_text("{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}")
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    cases.write_text(json.dumps({"id": 1, "template": str(template), "messages": messages}))
    assert run(capsys, "--jsonl", cases)[1][0]["prompt"] == "system:d;user:u;"
    assert run(capsys, "--exact", "--jsonl", cases)[1][0]["prompt"] == "user:[{'type': 'text', 'text': 'u'}];"


def test_many_in_one_process(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template, refusing = str(files / "template.jinja"), str(files / "refusing.jinja")
    plain = {"template": template, "bos_token": "<s>", "eos_token": "</s>", "messages": HELLO, "now": "2026-01-15T12:00:00"}
    lines = [
        {"id": "a", "tokenizer": None, **plain},
        {"id": 2, **plain, "add_generation_prompt": False, "tools": [TOOL], "documents": [{"text": "d"}], "kwargs": {"mood": "!"}},
        {"id": "c", "template": refusing, "messages": HELLO, "tools": None, "documents": None, "kwargs": None, "now": None},
        {"id": "d", "tokenizer": str(MODEL), "template": None, "bos_token": None, "eos_token": None, "messages": HELLO},
        {"id": "e", "template": "/nonexistent/template.jinja", "messages": HELLO},
        {"id": "f", "template": template, "messages": HELLO, "now": "yesterday"},
    ]
    file = files / "cases.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    code, answers, err = run(capsys, "--jsonl", file)
    assert (code, err) == (0, "")
    assert answers[0] == {"id": "a", "prompt": "<s>user: Hello\n2026-01-15 assistant:</s>", "tokens": None}
    assert answers[1] == {"id": 2, "prompt": "<s>user: Hello\ntools=1\ndocuments=1\n2026-01-15!</s>", "tokens": None}
    assert answers[2] == {"id": "c", "error": "no user here"}
    assert answers[3]["tokens"] == load_tokenizer(MODEL).encode(str(answers[3]["prompt"]))
    assert [sorted(answer) for answer in answers[4:]] == [["error", "id"]] * 2
    assert [answer["id"] for answer in answers] == [line["id"] for line in lines]


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', '{"messages": "x"}', "[" * 100_000])
def test_a_line_that_is_no_case_is_an_error_and_the_rest_goes_on(line: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = files / "cases.jsonl"
    good = {"id": "good", "template": str(files / "template.jinja"), "messages": HELLO}
    file.write_text(f"{line}\n{json.dumps(good)}\n")
    code, [bad, answer], _ = run(capsys, "--jsonl", file)
    assert code == 1
    assert bad["id"] is None
    assert str(bad["error"]).startswith("line 1")
    assert answer["id"] == "good"
    assert "prompt" in answer


def test_usage(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = files / "chat.json"
    for wrong in (
        (),
        (chat,),
        ("--tokenizer", MODEL),
        ("--jsonl", chat, chat),
        ("--jsonl", chat, "--now", "x"),
        ("--tokeniser", "x", chat),
    ):
        code, answers, err = run(capsys, *wrong)
        assert (code, answers) == (2, [])
        assert err.startswith("smg render: ")
    code, _, err = run(capsys, "--tokenizer", MODEL, "--kwargs", "{", chat)
    assert code == 1
    assert err.startswith("smg: --kwargs is no JSON")
    code, _, err = run(capsys, "--tokenizer", MODEL, files / "missing.json")
    assert code == 1
    assert "missing.json" in err
