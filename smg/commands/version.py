"""`smg version`: the version, and with --verbose those of everything that serves a request."""

import platform
from importlib import metadata

from smg import __version__
from smg.commands.arguments import Arguments

__all__ = ["run"]

PARTS = ("granian", "uvloop", "grpcio", "protobuf", "msgspec", "jinja2", "tokenizers", "fastokens", "numpy")


def run(arguments: list[str]) -> int:
    """Prints; gives 0."""
    parser = Arguments(prog="smg version", description="Prints the version.")
    parser.add_argument("--verbose", action="store_true", help="also the versions of Python, the system and the packages underneath")
    options = parser.read(arguments)
    print(f"smg {__version__}")
    if options.verbose:
        print(f"python {platform.python_version()}\nsystem {platform.platform()}")
        for part in PARTS:
            print(part, _version(part))
    return 0


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"
