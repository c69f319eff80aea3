"""What all tests share: the folder of shared fixtures, its tokenizers, and tests against real engines only when asked for."""

import os
import pathlib
from collections.abc import Callable
from functools import lru_cache

import hypothesis
import pytest

from smg.tokenizer import Tokenizer, load_tokenizer

# A busy machine is slow, which is no fault of what is tested; and what CI finds must be found again by whoever looks for it.
hypothesis.settings.register_profile(
    "smg", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("smg")

ROOT = pathlib.Path(__file__).parents[1]
OPENAI = ("cl100k_base", "o200k_base")


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of shared fixtures and references: $SMG_SHARED, else `shared` beside the repository. Skips where there is none."""
    folder = pathlib.Path(os.environ.get("SMG_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no shared fixtures: {folder} is not there, and SMG_SHARED names no other folder")
    return folder


@pytest.fixture(scope="session")
def real(shared: pathlib.Path) -> Callable[[str], Tokenizer]:
    """Loads a shared tokenizer by its folder's name, or an OpenAI vocabulary by its file's; without the slow-loading quick encoder.

    One takes up to 250 MB and seconds, so only the last is kept, and tests of the same one come together.
    """

    @lru_cache(1)
    def load(name: str) -> Tokenizer:
        folder = shared / "fixtures" / "tokenizers"
        return load_tokenizer(folder / "openai-tiktoken" / f"{name}.tiktoken" if name in OPENAI else folder / name, fast=False)

    return load


def tokenizer_of(item: pytest.Item) -> str:
    """The shared tokenizer that a test loads by `real`; empty for one that loads none."""
    if "real" not in getattr(item, "fixturenames", ()):
        return ""
    return str((getattr(item, "callspec", None) and item.callspec.params.get("name")) or "qwen3")  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests marked `engines` unless -m speaks of them: they need minutes of set-up. Those that load the same tokenizer come one
    after the other; they are one share of the work where processes share it (make test), as each file of the others is.
    """
    chosen = items if "engines" in config.getoption("markexpr") else [item for item in items if not item.get_closest_marker("engines")]
    config.hook.pytest_deselected(items=[*set(items).difference(chosen)])
    items[:] = sorted(chosen, key=tokenizer_of)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(tokenizer_of(item) or item.nodeid.partition("::")[0]))
