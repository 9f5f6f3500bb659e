#!/usr/bin/env bash
# Runs `make run`, `make test` or `make test-all` in a clean Debian root that has only git, curl, make, a C compiler and the Rust toolchain.
#
#   sudo scripts/clean-root.sh [--suite SUITE] [--keep] [run] [test] [test-all]
#
# Without a step it runs `run` and `test`. Prints the seconds and the disk of target/ of each step. Needs root, and the Debian package
# debootstrap. SUITE is bookworm or trixie; by default that of this machine's apt sources. The root is made below $TMPDIR (/var/tmp by
# default), has the committed state of this repository, and is removed at the end; --keep leaves it.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { echo "clean-root.sh: $1" >&2; exit 1; }
# shellcheck source=scripts/debian-root.sh
. "$repository/scripts/debian-root.sh"

suite='' steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --keep) keep=yes; shift ;;
    run | test | test-all) steps+=("$1"); shift ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(run test)
command -v cargo > /dev/null || fail 'the Rust toolchain is missing'

[ -n "$suite" ] || read -r _ suite < <(debian_source)
make_root "$suite" git,curl,ca-certificates,make,gcc,libc6-dev

section 'the Rust toolchain, and a clone of the repository'
sysroot=$(rustc --print sysroot)
mkdir -p "$root/opt/rust" "$root/root"
cp -a "$sysroot/." "$root/opt/rust/"
git clone --quiet --no-hardlinks "$repository" "$root/root/encke"
for file in /etc/pip.conf /root/.npmrc /root/.cargo/config.toml; do
  [ ! -e "$file" ] || install -D -m 600 "$file" "$root$file"
done
cp -aL /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

in_repository() { inside bash -c "cd /root/encke && exec $1"; }

# Starts `make run`, which builds first, appends a record, reads it, and stops the server.
make_run() {
  local port server address
  # Another server may have the default port; nothing listens on this one at the moment.
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  in_repository "env ENCKE_LISTEN=127.0.0.1:$port make run" &
  server=$!
  until curl -sf -o /dev/null "http://127.0.0.1:$port/readyz"; do
    kill -0 "$server" 2> /dev/null || fail '`make run` ended before it served'
    sleep 0.5
  done
  address=http://127.0.0.1:$port/v1/stream/clean-root
  curl -sSf -X PUT "$address" -H 'Content-Type: text/plain' -d 'it serves'
  [ "$(curl -sSf "$address?offset=-1")" = 'it serves' ] || fail 'the stream does not have the record'
  kill -TERM "$(processes "$root" encke)"
  wait "$server" || fail "\`make run\` ended with $? after SIGTERM"
  echo '`make run` served, and stopped cleanly on SIGTERM'
}

# Megabytes of target/.
target_mb() { du -sm "$root/root/encke/target" 2> /dev/null | cut -f 1; }

for step in "${steps[@]}"; do
  section "make $step"
  started=$SECONDS before=$(target_mb) || before=0
  case $step in
    run) make_run ;;
    *) in_repository "make $step" ;;
  esac
  echo "make $step in $suite: $((SECONDS - started)) s, $(($(target_mb) - before)) MB of target/"
done

section "everything passes in a clean root of $suite"
