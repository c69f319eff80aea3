"""Each field for itself: types, ranges, names from registries, and messages that show no secret."""

import pytest
from msgspec import structs

from smg.config.choices import BACKENDS, choices_of
from smg.config.fields import Field, convert, fields, sections
from smg.config.tree import Config
from smg.engine import ENGINES
from smg.policy import POLICIES


def field(name: str) -> Field:
    return next(field for field in fields() if field.name == name)


def test_every_field_of_the_tree_is_listed_once() -> None:
    tree = [f"{section}.{name}" for section in sections() for name in getattr(Config(), section).__struct_fields__]
    assert [field.path for field in fields()] == tree
    assert len({flag for field in fields() for flag in field.flags}) == sum(len(field.flags) for field in fields())
    assert all(field.description for field in fields())


def test_defaults_are_right_by_their_own_rules() -> None:
    for each in fields():
        raw = list(each.default) if isinstance(each.default, tuple) else each.default
        assert convert(each, raw, text=False) == each.default


@pytest.mark.parametrize(
    ("name", "raw", "text", "value"),
    [
        ("port", "8080", True, 8080),
        ("port", 8080, False, 8080),
        ("request_timeout_s", "2.5", True, 2.5),
        ("request_timeout_s", 3, False, 3.0),
        ("log_json", "true", True, True),
        ("log_json", "0", True, False),
        ("worker_urls", ["grpc://a:1"], True, ("grpc://a:1",)),
        ("log_level", "warn", True, "warn"),
        ("policy", "round_robin", False, "round_robin"),
        ("backend", "mlx", False, "mlx"),
    ],
)
def test_right_values(name: str, raw: object, text: bool, value: object) -> None:
    converted = convert(field(name), raw, text=text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "text", "message"),
    [
        ("port", "70000", True, "expected whole number <= 65535, got '70000'"),
        ("port", "x", True, "expected whole number, got 'x'"),
        ("port", "8080", False, "expected whole number, got '8080'"),
        ("port", True, False, "expected whole number, got True"),
        ("request_timeout_s", "0", True, "expected number > 0.0, got '0'"),
        ("request_timeout_s", "inf", True, "expected a finite number"),
        ("request_timeout_s", "nan", True, "expected number > 0.0, got 'nan'"),
        ("shutdown_grace_period_s", float("nan"), False, "expected number >= 0.0, got nan"),
        ("log_json", "maybe", True, "expected true or false, got 'maybe'"),
        ("worker_urls", "grpc://a:1", False, "expected list, got 'grpc://a:1'"),
        ("worker_urls", ["grpc://a:1", 5], False, "expected text, got whole number (item 1)"),
        ("log_level", "warning", True, "'warning' is not one of debug, info, warn, error (did you mean warn?)"),
        ("backend", "vlm", True, "'vlm' is not one of auto, vllm, sglang, trtllm, mlx, tokenspeed (did you mean vllm?)"),
    ],
)
def test_wrong_values(name: str, raw: object, text: bool, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as caught:
        convert(field(name), raw, text=text)
    assert str(caught.value) == message


def test_an_unknown_policy_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'round_robbin' is not one of .*\(did you mean round_robin\?\)"):
        convert(field("policy"), "round_robbin", text=True)
    assert choices_of("policy") == POLICIES.names(aliases=True)


def test_a_secret_is_not_repeated_in_a_message() -> None:
    for raw in ("sk-secret", ["sk-secret", 5]):
        with pytest.raises(ValueError, match=r"^") as caught:
            convert(field("api_key"), raw, text=False)
        assert "secret" not in str(caught.value)


def test_backends_are_the_registered_engines() -> None:
    assert set(BACKENDS) == set(ENGINES.names())


def test_the_struct_of_a_section_takes_every_field() -> None:
    for each in fields():
        section = getattr(Config(), each.section)
        assert structs.replace(section, **{each.name: each.default}) == section
