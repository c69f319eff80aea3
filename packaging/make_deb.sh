#!/usr/bin/env bash
# Makes dist/smg_VERSION_amd64.deb of dist/smg (`make binary`). VERSION replaces the program's own; LEVEL=0 packs in
# 5 seconds instead of 60 and makes a sixth more, for tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$PWD/build/package
python=$work/venv/bin/python
say() { echo "smg: $*" >&2; }
die() { say "$*"; exit 1; }

[ -x dist/smg/smg ] || die "dist/smg is missing: make binary"
packaging/tools.sh dpkg-deb=dpkg lintian=lintian

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y smg/__init__.py)}
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

version=${VERSION:-$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' smg/__init__.py)}
name=smg_${version}_amd64.deb
root=$work/root
doc=$root/usr/share/doc/smg
glibc=$(cat "$work/glibc")

put() { install -D -m "$1" "$2" "$root/$3"; } # MODE FILE PLACE
packed() { gzip -9n > "$1"; }

rm -rf "$root"
mkdir -p "$root"/{DEBIAN,usr/bin,usr/lib,etc/smg/{conf.d,instances}} "$doc" "$root"/usr/share/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
install -d -m 0700 "$root/etc/smg/credentials"
cp -a dist/smg "$root/usr/lib/smg"
find "$root/usr/lib/smg" -type d -exec chmod 0755 {} +
find "$root/usr/lib/smg" -type f ! -path "$root/usr/lib/smg/smg" -exec chmod 0644 {} +
ln -s ../lib/smg/smg "$root/usr/bin/smg"
for unit in systemd/*; do put 0644 "$unit" "usr/lib/systemd/system/${unit##*/}"; done
put 0644 packaging/debian/sysusers.conf usr/lib/sysusers.d/smg.conf
put 0644 packaging/debian/lintian-overrides usr/share/lintian/overrides/smg
for script in postinst prerm postrm; do put 0755 packaging/debian/$script DEBIAN/$script; done

# The program that is packaged says what its settings are.
{
    echo "# Settings of the SMG gateway. Each line that is commented out shows a default. smg(1) explains; \`smg check\` finds mistakes."
    echo "# Files of your own in /etc/smg/conf.d/*.toml are read after this one and survive every upgrade untouched."
    echo
    dist/smg/smg config --reference
} > "$root/etc/smg/smg.toml"
chmod 0640 "$root/etc/smg/smg.toml"
echo /etc/smg/smg.toml > "$root/DEBIAN/conffiles"

generate() { "$python" -B "packaging/$1" "${@:2}"; } # with the smg that was frozen, not the checkout's
generate manual.py | packed "$root/usr/share/man/man1/smg.1.gz"
generate completions.py bash > "$root/usr/share/bash-completion/completions/smg"
generate completions.py zsh > "$root/usr/share/zsh/vendor-completions/_smg"
generate completions.py fish > "$root/usr/share/fish/vendor_completions.d/smg.fish"
generate changelog.py "$version" | packed "$doc/changelog.gz"
generate copyright.py dist/smg > "$doc/copyright"

cat > "$root/DEBIAN/control" << END
Package: smg
Version: $version
Architecture: amd64
Maintainer: The SMG developers <smg@localhost>
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= ${glibc#GLIBC_}), libstdc++6 (>= 5), libgcc-s1 (>= 4.2), init-system-helpers (>= 1.54), passwd
Recommends: systemd
Section: net
Priority: optional
Description: gateway between LLM clients and inference engines
 SMG serves OpenAI's HTTP API and sends the work to inference
 engines (vLLM, SGLang, TensorRT-LLM, MLX, TokenSpeed) over gRPC: chat
 templates, tokenizing, routing, detokenizing, stop strings and the parsing of
 reasoning and tool calls happen here, tensor work in the engine.
 .
 The package holds a program that needs no Python, a hardened service that
 restarts without refusing a request, and a simulated engine to try it with.
END

(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p dist
# Two threads whatever the machine has: the number decides how the data is cut, and so its bytes.
dpkg-deb --root-owner-group -Zxz -z"${LEVEL:-6}" --threads-max=2 --build "$root" "dist/$name" > /dev/null
say "dist/$name: $(du -m "dist/$name" | cut -f1) MB, $(sha256sum "dist/$name" | cut -d ' ' -f 1)"
lintian --allow-root --fail-on error,warning "dist/$name" || die "lintian found something"
