"""`python -m bench.policies`: see `--help`."""

from bench.policies.run import main

if __name__ == "__main__":
    raise SystemExit(main())
