#!/usr/bin/env bash
# Says why the package cannot be made on this machine, and exits with 1; says nothing and exits with 0 where it can.
# In: PYTHON (default python3). Asked by `make binary`, and by CI, which then says so and goes on.
set -euo pipefail

python=${PYTHON:-python3}
cannot() { echo "$*"; exit 1; }

[ "$(uname -s)" = Linux ] || cannot "the program is frozen on Linux only"
if ! command -v dpkg > /dev/null || [ "$(dpkg --print-architecture)" != amd64 ]; then cannot "only Debian and its like on amd64 are packaged for, on themselves"; fi
command -v "$python" > /dev/null || cannot "$python is no command: set PYTHON"
"$python" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_ENABLE_SHARED"))' \
    || cannot "$("$python" -V) has no shared libpython, which PyInstaller needs: choose another with PYTHON"
if [ "$(id -u)" != 0 ]; then
    for tool in cc strip chrpath strace lintian; do command -v $tool > /dev/null || cannot "$tool is missing, and only root can install it"; done
fi
