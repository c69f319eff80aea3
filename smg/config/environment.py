"""The middle layer: `SMG_<SECTION>_<FIELD>` variables. Lists are given with commas."""

import difflib
import re
from collections.abc import Mapping

from smg.config.fields import fields, sections
from smg.config.settings import Assignment, Settings
from smg.registry import nearest

__all__ = ["OTHER_VARIABLES", "read_environment"]

# Variables of ours that are no settings, with who reads them.
OTHER_VARIABLES = {
    "SMG_NO_EXT": "1 = the plain-Python twins in place of the native functions",
    "SMG_SHARED": "where the tests find their large fixtures",
}

# Kubernetes puts these into every container beside a service named smg or smg-…; none of them was meant for us.
SERVICE_LINK = re.compile(r"SMG_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

# How alike a variable with an unknown section must be to a known one to count as a slip and not as somebody else's.
SLIP = 0.85


def read_environment(environment: Mapping[str, str], settings: Settings) -> None:
    """Puts the variables' values into the settings; an unknown one that looks like ours is a mistake."""
    known = {field.variable: field for field in fields()}
    for name, text in environment.items():
        if not name.startswith("SMG_") or name in OTHER_VARIABLES or _is_service_link(name, text):
            continue
        field = known.get(name)
        if field is None:
            _refuse(name, list(known), settings)
            continue
        raw = [part.strip() for part in text.split(",") if part.strip()] if field.kind == "list" else text
        settings.put(Assignment(field=field, raw=raw, origin=name, text=True))


def _is_service_link(name: str, text: str) -> bool:
    return bool(SERVICE_LINK.fullmatch(name)) or (name.endswith("_PORT") and bool(SERVICE_ADDRESS.match(text)))


def _refuse(name: str, known: list[str], settings: Settings) -> None:
    ours = any(name.startswith(f"SMG_{section.upper()}_") for section in sections())
    if ours or difflib.get_close_matches(name, known, n=1, cutoff=SLIP):
        settings.mistakes.append(f"{name}: unknown environment variable{nearest(name, known)}")
