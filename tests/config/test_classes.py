"""The files of priority classes and of tenants' limits, and what is wrong with them."""

import re
import textwrap
from pathlib import Path

import pytest

from smg.config.classes import read_priority_classes, read_tenant_limits
from smg.errors import ConfigError


def test_no_file_changes_nothing() -> None:
    assert read_priority_classes("").classes == {}


def test_json_is_yaml_too(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"default_policy": {"requests_per_minute": 5}, "tenants": [{"tenant_key": "a", "tokens_per_minute": 7}]}')
    limits = read_tenant_limits(str(file))
    assert (limits.default_policy.requests_per_minute, limits.tenants[0].tokens_per_minute) == (5, 7)


def test_the_files_that_the_readme_shows(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    files = {}
    for flag in ("tenant-rate-limit-config", "priority-scheduler-config"):
        [shown] = re.findall(rf"^A file of `--{flag}`:\n\n((?:    .*\n)+)", readme, re.MULTILINE)
        files[flag] = tmp_path / f"{flag}.yaml"
        files[flag].write_text(textwrap.dedent(shown))
    [tenant] = read_tenant_limits(str(files["tenant-rate-limit-config"])).tenants
    assert (tenant.tenant_key, tenant.model_rules[0].tokens_per_minute) == ("auth:acme", 200000)
    assert list(read_priority_classes(str(files["priority-scheduler-config"])).classes) == ["interactive", "bulk"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("classes: {urgent: {reserved: 1}}", "urgent"),
        ("classes: {bulk: {reserves: 1}}", "reserves"),
        ("classes: {bulk: {queue_timeout_secs: 0}}", "queue_timeout_secs"),
        ("tenant_policies: {a: {max_class: urgent}}", "urgent"),
        ("classes: [", "line 1"),
        ("- 1", "object"),
    ],
)
def test_mistakes_in_classes(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "priority.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_priority_classes(str(file))
    assert str(file) in told.value.mistakes[0]
    assert said in told.value.mistakes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: [{tokens_per_minute: 1}]", "has no tenant_key"),
        ("tenants: [{tenant_key: a}, {tenant_key: a}]", "is there twice"),
        ("default_policy: {tokens_per_minute: 0}", "tokens_per_minute"),
        ("default_policy: {model_rules: [{rule_id: a, matcher: {type: regex, value: b}}]}", "regex"),
    ],
)
def test_mistakes_in_limits(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_tenant_limits(str(file))
    assert said in told.value.mistakes[0]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError) as told:
        read_tenant_limits("/nowhere/limits.yaml")
    assert told.value.mistakes == ["/nowhere/limits.yaml: No such file or directory"]
