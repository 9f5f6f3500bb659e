#!/usr/bin/env bash
# Makes the packages of a release for this machine's architecture, in target/dist: a tarball, a Debian package, an RPM package, the debug
# symbols apart, and their checksums. The same commit makes the same bytes with the same tools.
#
#   scripts/dist.sh [BINARY]
#
# BINARY: a release build with symbols; target/release/encke by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
binary=${1:-$target/release/encke}
tools=$target/tools
out=$target/dist
root=$out/root
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=encke-$version-$(uname -m)-linux-gnu
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

rm -rf "$out"
mkdir -p "$root/man" "$root/completions" "$root/doc"

# The binary, and what a debugger wants to know about it.
objcopy --only-keep-debug --compress-debug-sections=zlib "$binary" "$out/$name.debug"
strip --strip-all -o "$root/encke" "$binary"
bytes_max=25000000
bytes=$(stat -c %s "$root/encke")
[ "$bytes" -le $bytes_max ] || { echo "dist.sh: the binary has $bytes bytes, more than $bytes_max" >&2; exit 1; }
(cd "$out" && objcopy --add-gnu-debuglink="$name.debug" root/encke)

"$root/encke" man "$root/man"
gzip -9n "$root"/man/*.1
"$root/encke" completions bash > "$root/completions/encke"
"$root/encke" completions zsh > "$root/completions/_encke"
"$root/encke" completions fish > "$root/completions/encke.fish"
cp README.md CHANGELOG.md LICENSE "$root/doc/"
cp -r docs/*.md "$root/doc/"
cp packaging/encke.toml packaging/systemd/encke.service packaging/systemd/socket/encke-listener.socket "$root/"
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
  --transform="s,^root,$name," --directory="$out" root | gzip -9n > "$out/$name.tar.gz"

# The crates that make packages are tools of their own, in the versions that were tried.
tool() {
  local crate=$1 wanted=$2
  if [ "$("$tools/bin/$crate" --version 2> /dev/null | grep -o '[0-9][0-9.]*' | head -n 1)" != "$wanted" ]; then
    cargo install --quiet --locked --root "$tools" "$crate@$wanted"
  fi
}
tool cargo-deb 3.8.0
tool cargo-generate-rpm 0.21.1
export PATH="$PWD/$tools/bin:$PATH"
cargo deb --package encke --no-build --no-strip --locked --output "$out/"
cargo generate-rpm --package crates/encke --output "$out/"

rm -rf "$root"
(cd "$out" && sha256sum -- * > SHA256SUMS)
(cd "$out" && ls -l --block-size=1)
