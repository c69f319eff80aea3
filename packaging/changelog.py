"""Writes CHANGELOG.md as Debian's changelog: `python changelog.py VERSION` prints it."""

import datetime
import os
import pathlib
import re
import sys
import textwrap

__all__ = ["debian_changelog"]

MAINTAINER = "The SMG developers <smg@localhost>"


def debian_changelog(text: str, *, version: str, moment: datetime.datetime) -> str:
    """Gives one entry a version; what is not released yet is the entry of `version`."""
    entries = []
    for title, body in re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        points = re.findall(r"^- (.*(?:\n  .*)*)", body, re.MULTILINE)
        lines = [textwrap.fill(" ".join(point.split()), 76, initial_indent="  * ", subsequent_indent="    ") for point in points]
        name = version if title == "Unreleased" else title
        changes = "\n".join(lines)
        entries.append(f"smg ({name}) unstable; urgency=medium\n\n{changes}\n\n -- {MAINTAINER}  {moment:%a, %d %b %Y %H:%M:%S +0000}\n")
    return "\n".join(entries)


if __name__ == "__main__":
    source = pathlib.Path(__file__).parents[1] / "CHANGELOG.md"
    made = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), tz=datetime.UTC)
    sys.stdout.write(debian_changelog(source.read_text(encoding="utf-8"), version=sys.argv[1], moment=made))
