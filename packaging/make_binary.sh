#!/usr/bin/env bash
# Makes dist/smg: the program with everything that it needs but the C library, in one folder that runs wherever it is put.
# In: the tracked files of this checkout, PYTHON (default python3). Work happens in build/package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
work=$PWD/build/package
venv=$work/venv
source=$work/source
say() { echo "smg: $*" >&2; }
die() { say "$*"; exit 1; }

reason=$(packaging/cannot.sh) || die "$reason"
packaging/tools.sh cc=gcc /usr/include/stdio.h=libc6-dev strip=binutils chrpath=chrpath strace=strace "/usr/lib/*/libz.a=zlib1g-dev" \
    /usr/include/nghttp2/nghttp2.h=libnghttp2-dev
libz=$(cc -print-file-name=libz.a)

# The same sources and tools give the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y smg/__init__.py)}
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC PIP_DISABLE_PIP_VERSION_CHECK=1
export CFLAGS="-O2 -g0 -ffile-prefix-map=$source=." LDFLAGS="-Wl,--build-id=none"
umask 022

copy_sources() { # only what git does not ignore, so that nothing that was built in the checkout gets in
    rm -rf "$source"
    mkdir -p "$source"
    { git ls-files -z -co --exclude-standard -- smg smg_ext proto setup.py pyproject.toml README.md LICENSE packaging 2> /dev/null \
        || find smg smg_ext proto setup.py pyproject.toml README.md LICENSE packaging -type f -not -name '*_pb2*' -not -name '*.so' -print0; } \
        | tar --null -T - -cf - | tar -xf - -C "$source"
}

pip_install() { "$venv/bin/python" -m pip install --quiet --quiet --no-input "$@"; }

make_venv() { # made again when a version or the Python changes
    local key
    key=$({ "$python" -VV; cat packaging/{constraints.txt,make_binary.sh} pyproject.toml; echo "$work"; } | sha256sum | cut -c1-16)
    if [ "$(cat "$venv/.made" 2> /dev/null)" = "$key" ]; then return; fi
    say "making $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" - > "$work/requirements.txt" << 'END'
import tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
print("\n".join([*settings["build-system"]["requires"], *settings["project"]["dependencies"]]))
END
    pip_install -c packaging/constraints.txt -r "$work/requirements.txt"
    # Its launcher comes prebuilt with a fixed address and the host's zlib; built here it has neither.
    mkdir -p "$work/static"
    ln -sf "$libz" "$work/static/libz.a"
    PYINSTALLER_COMPILE_BOOTLOADER=1 CFLAGS="$CFLAGS -fPIE -fstack-protector-strong -D_FORTIFY_SOURCE=2" \
        LDFLAGS="-L$work/static -pie -Wl,-z,relro,-z,now,--build-id=none" \
        pip_install --no-binary pyinstaller -c packaging/constraints.txt pyinstaller
    echo "$key" > "$venv/.made"
}

install_smg() {
    say "building smg"
    (cd "$source" && pip_install --no-build-isolation --no-deps --no-compile --force-reinstall .)
}

freeze() { # elsewhere than in the checkout, whose modules would be found before those that are installed
    local log=$work/pyinstaller.log
    say "freezing"
    rm -rf "$work/out" "$work/frozen"
    mkdir "$work/frozen"
    (cd "$work/frozen" && SMG_SOURCE=$source "$venv/bin/python" -m PyInstaller --noconfirm --clean --distpath "$work/out" --workpath "$work/frozen" \
        "$source/packaging/smg.spec") > "$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    if [ ! -e "$work/out/smg/_internal/smg/sim/data/corpus.txt" ]; then die "the frozen program lacks its data: see $log"; fi
}

shrink() { # patchelf'ed libraries in *.libs are broken by strip, and pip's own records say where it installed from
    find "$work/out/smg" -type f -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +
    # Where the machine that built Python keeps its libraries is no place to look for any.
    find "$work/out/smg" -type f -name '*.so*' -not -path '*.libs/*' -exec sh -c 'for file; do if chrpath -l "$file" 2>&1 | grep -q "PATH=/"; then chrpath -d "$file" > /dev/null; fi; done' _ {} +
    find "$work/out/smg" -name '*.dist-info' -type d -exec sh -c 'cd "$1" && rm -rf RECORD INSTALLER REQUESTED direct_url.json sboms licenses' _ {} \;
    find "$work/out/smg" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

glibc_needed() { # the newest symbol version of the C library that any file asks for
    find "$work/out/smg" -type f \( -name '*.so*' -o -name smg \) -exec objdump -T {} + 2> /dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -n 1
}

mkdir -p "$work" dist
copy_sources
make_venv
install_smg
freeze
shrink
glibc_needed > "$work/glibc"
rm -rf dist/smg
mv "$work/out/smg" dist/smg
say "dist/smg: $(du -sm dist/smg | cut -f1) MB, needs $(cat "$work/glibc") or later"
