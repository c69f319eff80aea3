"""The command line: forms of flags, lists, switches, and every kind of mistake."""

import pytest

from smg.config.flags import FlagReader, flag_table
from smg.config.original import ORIGINAL_FLAGS


def values(*arguments: str) -> dict[str, object]:
    reader = FlagReader(arguments)
    assert reader.mistakes == []
    return {assignment.field.path: assignment.raw for assignment in reader.assignments()}


def mistakes(*arguments: str) -> list[str]:
    return FlagReader(arguments).mistakes


def test_values_follow_or_are_joined_by_an_equals_sign() -> None:
    assert values("--port", "1") == values("--port=1") == {"server.port": "1"}
    assert values("--api-key=a=b") == {"server.api_key": ["a=b"]}
    assert values("--port", "1", "--port", "2") == {"server.port": "2"}


@pytest.mark.parametrize(
    "arguments",
    [("--worker-urls", "a", "b", "c"), ("--worker-urls", "a", "--worker-urls", "b", "c"), ("--worker-urls=a", "--worker-urls", "b", "c")],
)
def test_lists_take_several_values_and_are_repeatable(arguments: tuple[str, ...]) -> None:
    assert values(*arguments, "--port", "1") == {"engines.worker_urls": ["a", "b", "c"], "server.port": "1"}


def test_an_empty_list_is_said_with_an_equals_sign() -> None:
    assert values("--worker-urls=") == {"engines.worker_urls": []}


def test_switches() -> None:
    assert values("--log-json") == {"logging.log_json": True}
    assert values("--no-log-json") == values("--log-json", "--no-log-json") == {"logging.log_json": False}
    assert values("--log-json=false") == {"logging.log_json": "false"}
    assert mistakes("--no-port") == ["--no-port: unknown flag (did you mean --port?)"]


def test_all_names_of_a_setting_are_one_setting() -> None:
    assert values("--model", "a") == values("--model-path", "a") == {"model.model_path": "a"}
    assert values("--runtime", "a") == values("--backend", "a") == {"engines.backend": "a"}


def test_config_and_help() -> None:
    reader = FlagReader(["--config", "a", "--config=b", "--help"])
    assert (reader.files, reader.help, reader.mistakes) == (["a", "b"], True, [])
    assert FlagReader(["-h"]).help


def test_no_abbreviations() -> None:
    assert mistakes("--worker-url", "a") == ["--worker-url: unknown flag (did you mean --worker-urls?)"]


def test_flags_of_the_original_that_do_not_exist_yet_are_said_to_be_so() -> None:
    assert mistakes("--enable-mesh") == ["--enable-mesh is not supported by this version"]
    assert mistakes("--encode", "grpc://a:1", "8998", "--mesh-port", "-1") == [
        "--encode is not supported by this version",
        "--mesh-port is not supported by this version",
    ]


def test_the_tree_uses_the_names_of_the_original() -> None:
    ours = {"--workers", "--backlog", "--keepalive-interval-secs", "--api-key-file", "--data-plane", "--connect-timeout-secs"}
    ours |= {"--max-message-bytes", "--allow-special-tokens-in-text", "--state-dir", "--runtime-dir", "--http-front", "--max-client-buffer"}
    ours |= {"--tokenizer-cache-l0-max-memory", "--trust-request-chat-template", "--structural-tags"}
    ours |= {"--request-cost-tokens", "--max-sticky-keys", "--rate-limit-url", "--rate-limit-fail"}
    ours |= {"--workers-file", "--kubernetes-api", "--kubernetes-account-dir", "--service-discovery-scheme", "--model-policy"}
    ours |= {"--forward-headers", "--max-engine-connections", "--stream-idle-timeout-secs", "--worker-url-allow"}
    ours |= {"--consistent-hashing-slack-tokens"}
    assert set(flag_table()) - ORIGINAL_FLAGS == ours


def test_every_mistake_is_found() -> None:
    found = mistakes("stray", "--prot", "5", "--port", "--hots=x", "-x", "--host")
    assert found == [
        "stray: unexpected argument",
        "--prot: unknown flag (did you mean --port?)",
        "--port: needs a value",
        "--hots: unknown flag (did you mean --host?)",
        "-x: unknown flag",
        "--host: needs a value",
    ]


def test_the_second_value_of_a_single_flag_is_a_mistake() -> None:
    assert mistakes("--ca-cert-paths", "a", "b") == ["b: unexpected argument"]


def test_the_port_of_a_prefill_engine_may_follow_its_address() -> None:
    arguments = ("--prefill", "grpc://a:1", "8998", "--prefill", "grpc://b:1", "--decode", "grpc://c:1")
    assert values(*arguments) == {"engines.prefill": ["grpc://a:1", "8998", "grpc://b:1"], "engines.decode": ["grpc://c:1"]}
