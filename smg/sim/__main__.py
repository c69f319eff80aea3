"""`python -m smg.sim FLAGS`: what `smg sim FLAGS` does, without the rest of the command line."""

import argparse

from smg.sim.command import add_arguments, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="smg sim", description="simulate an inference engine")
    add_arguments(parser)
    raise SystemExit(main(parser.parse_args()))
