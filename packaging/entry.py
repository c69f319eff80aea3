"""The program inside the binary: the `smg` command, which is also its own `python -m smg…` for the processes that it starts."""

import os
import sys

# The OpenSSL in the bundle must read neither the machine's settings nor load its modules, which are made for another OpenSSL.
os.environ.setdefault("OPENSSL_CONF", os.devnull)

from smg.cli import main


def words(arguments: list[str]) -> list[str]:
    """Gives the command line without Python's `-m MODULE`."""
    match arguments:
        case ["-m", "smg", *rest]:
            return rest
        case ["-m", module, *rest] if module.startswith("smg."):
            return [module.removeprefix("smg.").replace("launch_router", "launch"), *rest]
    return arguments


if __name__ == "__main__":
    raise SystemExit(main(words(sys.argv[1:])))
