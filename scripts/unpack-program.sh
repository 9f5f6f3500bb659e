#!/usr/bin/env bash
# Unpacks a program of Debian, with the libraries that are not installed, and makes FILE, which runs it. Nothing is installed,
# because that would start servers.
#
#   scripts/unpack-program.sh PACKAGE FILE
set -euo pipefail

package=$1 file=$2
dir=$file.unpacked

# The package and those that it needs and that are not installed.
missing() { apt-get -qq --simulate --no-install-recommends install "$package" | sed -n 's/^Inst \([^ ]*\).*/\1/p'; }
download() {
  local packages
  packages=$(missing)
  [ -n "$packages" ] && apt-get -qq download $packages
}
update() { $([ "$(id -u)" = 0 ] || echo sudo) apt-get -qq update; }

rm -rf "$dir"
mkdir -p "$dir"
cd "$dir"
download || { update && download; }
for one in *.deb; do
  dpkg -x "$one" .
  rm "$one"
done
program=$(find "$dir" -path "*bin/$package" -type f)
test -x "$program"
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$(dirname "$(find "$dir" -name '*.so.*' -print -quit)")" "$program" > "$file"
chmod +x "$file"
