"""`python -m smg.launch_router FLAGS` = `smg launch FLAGS`, the name under which the Rust original's Python wrapper is started."""

import sys

from smg.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["launch", *sys.argv[1:]]))
