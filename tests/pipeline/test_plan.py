"""What an engine says of sampling parameters that nobody named."""

import pytest

from smg.pipeline.plan import EngineDefaults, _engine_defaults


@pytest.mark.parametrize("text", ["", "{", "[]", '{"top_k": "many"}', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    assert _engine_defaults(text) == EngineDefaults()


def test_what_is_said_counts() -> None:
    assert _engine_defaults('{"top_k": 20, "other": {}}') == EngineDefaults(top_k=20)
