"""`python -m smg …` = `smg …`."""

from smg.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
