#!/usr/bin/env bash
# Sees that commands and files are there: COMMAND=PACKAGE or /FILE=PACKAGE each. As root on Debian it installs what is missing, else it says what.
set -euo pipefail

wanted=()
for pair in "$@"; do
    what=${pair%%=*}
    if ! { [ "${what#/}" != "$what" ] && compgen -G "$what" > /dev/null; } && ! command -v "$what" > /dev/null; then wanted+=("${pair#*=}"); fi
done
if [ ${#wanted[@]} = 0 ]; then exit 0; fi

line="apt-get install -y --no-install-recommends ${wanted[*]}"
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "smg: packages are missing. As root, on Debian: $line" >&2
    exit 1
fi
echo "smg: installing ${wanted[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
wait_for_others="-o DPkg::Lock::Timeout=300"
if ! { $line $wait_for_others || { apt-get update $wait_for_others && $line $wait_for_others; }; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    exit 1
fi
rm -f "$log"
