"""What the program is made of is pinned, is what is tested, and has the reason for it written down."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = ROOT / "packaging" / "constraints.txt"
# Makes the binary, in a venv of its own.
FREEZER = {"altgraph", "pyinstaller", "pyinstaller-hooks-contrib"}


def declared() -> list[Requirement]:
    """What pyproject.toml names for the program and its build."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [Requirement(line) for line in [*settings["build-system"]["requires"], *settings["project"]["dependencies"]]]


def wanted() -> dict[str, list[Requirement]]:
    """Every distribution that these bring on this Python, with all that is asked of its version."""
    found: dict[str, list[Requirement]] = {}
    todo = declared()
    while todo:
        requirement = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            todo += map(Requirement, metadata.requires(name) or ())
        found.setdefault(name, []).append(requirement)
    return found


def pins() -> dict[str, str]:
    """The lines of constraints.txt that hold for this Python."""
    lines = [Requirement(line) for line in PINS.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*,]+", str(line.specifier)) for line in lines), "each line is NAME==VERSION"
    return {canonicalize_name(line.name): str(line.specifier)[2:] for line in lines if not line.marker or line.marker.evaluate()}


def test_each_is_pinned_in_the_version_that_is_tested() -> None:
    pinned = pins()
    lines = [f"{name}=={metadata.version(name)}" for name in sorted(wanted())]
    wrong = [line for line in lines if pinned.get(line.partition("==")[0]) != line.partition("==")[2]]
    assert not wrong, "put these lines into packaging/constraints.txt (or run make build, where the venv is old):\n" + "\n".join(wrong)


def test_pins_are_what_is_asked_for() -> None:
    pinned = pins()
    asked = [(name, requirement) for name, requirements in wanted().items() for requirement in requirements]
    wrong = [
        f"{name}=={pinned.get(name)} is not {requirement}"
        for name, requirement in asked
        if not requirement.specifier.contains(pinned.get(name, "0"))
    ]
    assert wrong == []


def test_nothing_else_is_pinned() -> None:
    assert set(pins()) - set(wanted()) == FREEZER


def test_pins_are_in_order() -> None:
    names = list(pins())
    assert names == sorted(names)


def test_each_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    [block] = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert [line for line in block.splitlines() if "# " not in line] == []
