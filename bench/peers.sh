#!/bin/bash
# Compares this gateway with the Rust original, PyPI smg 1.13.0, under the same loads: bench/peers.sh [--pairs N] [--scenario a32,...] [--help]
# The original is installed with pip, as this machine has it set up, into a folder of its own under ${XDG_CACHE_HOME:-~/.cache}/smg-bench.
# PEER=/path/to/smg takes one that is there; PYTHON is the Python that runs this gateway (default: .venv/bin/python).
set -uo pipefail

version=1.13.0
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
venv=${XDG_CACHE_HOME:-$HOME/.cache}/smg-bench/smg-$version
peer=${PEER:-$venv/bin/smg}

refuse() {
    echo "bench/peers.sh: $*" >&2
    echo "There is nothing to compare with; 'make bench' measures this gateway alone." >&2
    exit 3
}

install_peer() {
    "$python" -m venv "$venv" || refuse "no virtual environment can be made in $venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "smg==$version" ||
        { rm -rf "$venv"; refuse "pip cannot install smg==$version"; }
}

[ -x "$python" ] || refuse "$python is not there: run 'make build' first"
[ -x "$peer" ] || [ -n "${PEER:-}" ] || install_peer
[ -x "$peer" ] || refuse "$peer is not there"
"$peer" launch --help > /dev/null 2>&1 || refuse "$peer does not run on this machine"

cd "$root" && exec "$python" -m bench.peers --peer "$peer" "$@"
