"""The small commands: check, config, tokenize, sim's flags."""

import io
import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from smg import cli
from smg.config import Config
from smg.tokenizer import load_tokenizer

MODEL = Path(cli.__file__).parent / "sim" / "data" / "model"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_check_of_what_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "smg.toml"
    file.write_text('[engines]\nworker_urls = ["grpc://a:1"]')
    assert run(capsys, "check", "--config", str(file), "--port", "5") == (
        0,
        f"configuration is right ({file}; 2 of the settings are not defaults)\n",
        "",
    )


@pytest.mark.parametrize(
    ("flags", "told"), [((), "all settings are defaults"), (("--port", "5"), "1 of the settings is not a default")], ids=["none", "one"]
)
def test_check_counts_what_is_set(flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", *flags)[:2] == (0, f"configuration is right (no file; {told})\n")


def test_check_of_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "smg.toml"
    file.write_text("[server]\nport = 70000\nprot = 1")
    code, out, err = run(capsys, "check", "--config", str(file), "--tls-key-path", "/nonexistent/key.pem")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "smg: 4 mistakes",
        f"  server.port ({file}): expected whole number <= 65535, got 70000",
        f"  server.prot ({file}): unknown key (did you mean port?)",
        "  tls.cert_path: is missing, and tls.key_path is given",
        "  tls.key_path (--tls-key-path): /nonexistent/key.pem does not exist",
    ]


def test_check_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--help")
    assert code == 0
    assert out.startswith("usage: smg check")


def test_config_in_effect_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "--port", "5", "--worker-urls", "grpc://a:1", "--api-key", "sk-1")
    assert code == 0
    assert "port = 5  # --port\n" in out
    assert "sk-1" not in out
    file = tmp_path / "smg.toml"
    file.write_text(out)
    code, again, _ = run(capsys, "config", "--config", str(file))
    assert code == 0
    assert tomllib.loads(again) == tomllib.loads(out)


def test_config_reference_is_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "--reference")
    assert code == 0
    assert msgspec.convert(tomllib.loads(re.sub(r"(?m)^#(\S)", r"\1", out)), Config) == Config()
    code, out, _ = run(capsys, "config", "--markdown")
    assert code == 0
    assert "| `port` | `--port` | `SMG_SERVER_PORT` | `30000` |" in out


def test_tokenize(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Hello <|im_end|> wörld"
    tokenizer = load_tokenizer(MODEL)
    code, out, _ = run(capsys, "tokenize", "--tokenizer", str(MODEL), text)
    assert code == 0
    answer = json.loads(out)
    assert answer["ids"] == tokenizer.encode(text)
    assert answer["count"] == len(answer["ids"]) == len(answer["tokens"])
    assert "<|im_end|>" in answer["tokens"]
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code, out, _ = run(capsys, "tokenize", "--ordinary", "--tokenizer", str(MODEL), "-")
    assert code == 0
    answer = json.loads(out)
    assert answer["ids"] == tokenizer.encode_ordinary(text)
    assert "<|im_end|>" not in answer["tokens"]


def test_mistakes_in_the_flags_of_small_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tokenize", "--tokeniser", "x", "--tokenizer", str(MODEL), "a") == (
        2,
        "",
        "smg tokenize: --tokeniser: unknown flag (did you mean --tokenizer?); a: unknown argument\n",
    )
    assert run(capsys, "tokenize", "a")[0] == 2
    assert run(capsys, "tokenize", "--tokenizer", "/nonexistent", "a") == (2, "", "smg: /nonexistent: no such file or folder\n")
    both = ("--ordinary", "--add-special-tokens")
    assert run(capsys, "tokenize", "--tokenizer", str(MODEL), *both, "a")[0] == 2
    assert run(capsys, "sim", "--prot", "0")[:2] == (2, "")
    assert run(capsys, "version", "--verb")[2] == "smg version: --verb: unknown flag (did you mean --verbose?)\n"


def test_the_simulators_help_tells_defaults_as_one_would_type_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sim", "--help")
    words = " ".join(out.split())
    assert code == 0
    assert "address to listen on (127.0.0.1)" in words
    assert "protocol to speak (vllm)" in words
    assert "offer the KV event stream (on)" in words
    assert "empty = the embedded one --" in words  # nothing stands for an empty text


@pytest.mark.parametrize("command", ["parse", "render"])
def test_a_command_without_input_says_how_to_read_a_pipe(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = run(capsys, command)
    assert code == 2
    assert "- is standard input" in told
