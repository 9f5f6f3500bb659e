#!/usr/bin/env bash
# Checks within a second that this machine has what `make run` or `make test` needs, before anything is built. Missing Debian
# packages are installed, by root or by a user for whom sudo asks no password. Otherwise one line names everything that is missing
# and how to get it, and the exit code is 1.
#
#   scripts/prerequisites.sh run|test
set -euo pipefail

for_what=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What the npm packages of tests/web and examples allow (see `engines` in tests/web/package.json).
NODE_VERSIONS='Node 20 from 20.19 on, 22 from 22.12 on, or 24 or later'
GO=1.24
PYTHON_MINOR=9 # of Python 3
RUST=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

packages=() # Debian packages to install.
others=()   # What is no Debian package, or not in this version: what, and where to get it.

has() { command -v "$1" > /dev/null; }

# Whether version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust() {
  local version sysroot
  version=$(rustc --version 2> /dev/null | cut -d ' ' -f 2) || version=
  if ! has cargo || [ -z "$version" ] || ! at_least "$version" "$RUST"; then
    others+=("Rust $RUST or later${version:+ (found $version)} from https://rustup.rs")
    return
  fi
  [ "$for_what" = test ] || return 0
  sysroot=$(rustc --print sysroot)
  if [ ! -x "$sysroot/bin/cargo-clippy" ] || [ ! -x "$sysroot/bin/cargo-fmt" ]; then
    has cargo-clippy && has cargo-fmt || others+=("rustfmt and clippy by \`rustup component add rustfmt clippy\`")
  fi
}

# Whether the tests run with this version of Node.
node_suits() {
  case ${1%%.*} in
    20) at_least "$1" 20.19 ;;
    22) at_least "$1" 22.12 ;;
    *) at_least "$1" 24 ;;
  esac
}

# Node and npm. Debian's package counts only if it suits.
node() {
  local version candidate
  version=$(command node --version 2> /dev/null | tr -d v) || version=
  if [ -n "$version" ] && node_suits "$version"; then
    has npm || packages+=(npm)
    return
  fi
  candidate=$(apt-cache policy nodejs 2> /dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p') || candidate=
  if [ -z "$version" ] && has apt-get && { [ -z "$candidate" ] || node_suits "$candidate"; }; then
    packages+=(nodejs npm)
  else
    others+=("$NODE_VERSIONS, with npm${version:+ (found $version)}${candidate:+ (Debian has $candidate)} from https://nodejs.org")
  fi
}

python() {
  local check="import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR))"
  if ! has python3; then
    packages+=(python3 python3-venv)
  elif ! python3 -c "$check"; then
    others+=("Python 3.$PYTHON_MINOR or later (found $(python3 --version | cut -d ' ' -f 2)) from https://www.python.org")
  elif ! python3 -c 'import venv, ensurepip' 2> /dev/null; then
    packages+=(python3-venv)
  fi
}

# Go builds h2spec and the checks of Prometheus. Debian's package counts only if it is recent enough.
go() {
  local version candidate
  version=$(command go env GOVERSION 2> /dev/null | tr -d go) || version=
  if [ -n "$version" ] && at_least "$version" "$GO"; then
    return
  fi
  candidate=$(apt-cache policy golang-go 2> /dev/null | sed -n 's/^ *Candidate: 2:\([0-9.]*\).*/\1/p') || candidate=
  if [ -z "$version" ] && has apt-get && { [ -z "$candidate" ] || at_least "$candidate" "$GO"; }; then
    packages+=(golang-go)
  else
    others+=("Go $GO or later${version:+ (found $version)}${candidate:+ (Debian has $candidate)} from https://go.dev/dl")
  fi
}

# A full disk fails a build somewhere in the middle. `$1`: the folder of the first build; `$2`: the megabytes that it takes.
room() {
  local target=${CARGO_TARGET_DIR:-$root/target} free
  [ ! -d "$target/$1" ] || return 0
  mkdir -p "$target"
  free=$(df --output=avail --block-size=1M "$target" | tail -n 1)
  [ "$free" -ge "$2" ] || others+=("$2 MB of disk for $target (found $((free)) MB)")
}

rust
has cc || packages+=(gcc libc6-dev)
case $for_what in
  run) room release 2000 ;;
  test) room debug 6000 ;;
esac
if [ "$for_what" = test ]; then
  has git || packages+=(git)
  has curl || packages+=(curl)
  has openssl || packages+=(openssl)
  has strace || packages+=(strace)
  # Only root can cut the processes of a fleet off from each other.
  [ "$(id -u)" != 0 ] || has ip || packages+=(iproute2)
  [ -x "${CHROMIUM:-/usr/bin/chromium}" ] || packages+=(chromium)
  node
  go
  python
  # The packages of these are only unpacked, because to install them would start servers.
  has nginx || [ -x /usr/sbin/nginx ] || has apt-get || others+=("nginx from https://nginx.org/en/download.html")
  has caddy || has apt-get || others+=("Caddy from https://caddyserver.com/download")
  has haproxy || [ -x /usr/sbin/haproxy ] || has apt-get || others+=("HAProxy from https://www.haproxy.org")
  has logrotate || [ -x /usr/sbin/logrotate ] || has apt-get || others+=("logrotate from https://github.com/logrotate/logrotate")
fi

if [ ${#packages[@]} -gt 0 ] && { ! has apt-get || { [ "$(id -u)" != 0 ] && ! sudo -n true 2> /dev/null; }; }; then
  others+=("the packages by \`sudo apt-get install -y ${packages[*]}\`")
elif [ ${#packages[@]} -gt 0 ] && [ ${#others[@]} -eq 0 ]; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  printf '\n=== installing %s\n' "${packages[*]}"
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" > /dev/null
  # The package may be older than was known before.
  packages=()
  [ "$for_what" = run ] || { node && go && python; }
  [ ${#packages[@]} -eq 0 ] || others+=("the packages ${packages[*]}")
elif [ ${#packages[@]} -gt 0 ]; then
  others+=("the packages by \`apt-get install -y ${packages[*]}\`")
fi

if [ ${#others[@]} -gt 0 ]; then
  line="make $for_what needs"
  separator=' '
  for other in "${others[@]}"; do
    line+="$separator$other"
    separator='; '
  done
  echo "$line" >&2
  exit 1
fi
