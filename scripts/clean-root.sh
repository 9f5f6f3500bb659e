#!/usr/bin/env bash
# Runs `make run` and `make test` in a clean Debian root that has only git, curl, make, a C compiler and the Rust toolchain.
#
#   sudo scripts/clean-root.sh [--suite SUITE] [--keep] [run] [test]
#
# Without `run` or `test` it does both. Needs root, and the Debian package debootstrap. The suite and the mirror are those of this
# machine's apt sources, but trixie if the suite is older: bookworm has Node 18, which `make test` refuses. --suite names another suite
# of the mirror. The root is made below $TMPDIR (/var/tmp by default; 12 GB free), has the committed state of this repository, and is
# removed at the end; --keep leaves it. `test` takes half an hour or more.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite='' keep='' steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --keep) keep=yes; shift ;;
    run | test) steps+=("$1"); shift ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(run test)

section() { printf '\n=== %s (%s)\n' "$1" "$(date +%T)"; }
fail() { echo "clean-root.sh: $1" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail 'run it as root'
command -v debootstrap > /dev/null || fail 'debootstrap is missing: apt-get install debootstrap'
command -v cargo > /dev/null || fail 'the Rust toolchain is missing'

# Mirror and suite of the first source of Debian's main archive.
read -r mirror own_suite < <(apt-get indextargets --format '$(SITE) $(RELEASE) $(ORIGIN) $(LABEL) $(COMPONENT) $(CREATED_BY)' |
  awk '$3 == "Debian" && $4 == "Debian" && $5 == "main" && $6 == "Packages" && $2 !~ /-/ { print $1, $2; exit }') ||
  fail "no Debian source is in this machine's apt sources: apt-get update"
case $own_suite in
  stretch | buster | bullseye | bookworm | old*) own_suite=trixie ;;
esac
suite=${suite:-$own_suite}

root=$(mktemp -d "${TMPDIR:-/var/tmp}/encke-clean-root.XXXXXX")
chmod 755 "$root"
# The processes that run in the root, those of that name only if one is given.
processes() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/root" 2> /dev/null)" = "$root" ] || continue
    [ -z "${1:-}" ] || [ "$(cat "$process/comm" 2> /dev/null)" = "$1" ] || continue
    echo "${process#/proc/}"
  done
}

cleanup() {
  local left
  left=$(processes)
  # shellcheck disable=SC2086 # Several numbers.
  [ -z "$left" ] || kill -KILL $left 2> /dev/null || true
  for mounted in dev sys proc; do
    ! mountpoint -q "$root/$mounted" || umount --recursive --lazy "$root/$mounted"
  done
  ! mountpoint -q "$root" || umount --lazy "$root"
  if [ -n "$keep" ]; then
    echo "the root is left in $root"
  elif findmnt -rn -o TARGET | grep -qF "$root/"; then
    echo "not removed, because something is still mounted in it: $root" >&2
  else
    rm -rf --one-file-system "$root"
  fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

section "a root of $suite in $root"
debootstrap --variant=minbase --include=git,curl,ca-certificates,make,gcc,libc6-dev "$suite" "$root" "$mirror" |
  sed -un 's/^I: \(Retrieving Packages\|Configuring [a-d]\|Base system.*\)/  \1/p'
# A mount of its own, because `unshare --mount` needs one as its root.
mount --bind --make-private "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind --make-rslave /sys "$root/sys"
mount --rbind --make-rslave /dev "$root/dev"

section 'the Rust toolchain, and a clone of the repository'
sysroot=$(rustc --print sysroot)
mkdir -p "$root/opt/rust" "$root/root"
cp -a "$sysroot/." "$root/opt/rust/"
git clone --quiet --no-hardlinks "$repository" "$root/root/encke"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# How this machine reaches its network: proxies and certificates.
for file in /etc/apt/apt.conf.d/*proxy* /etc/pip.conf /root/.npmrc /root/.cargo/config.toml; do
  [ ! -e "$file" ] || install -D -m 600 "$file" "$root$file"
done
cp -aL /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

# Runs a command in the root, in the repository, with a clean environment.
inside() {
  env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$root" bash -c "cd /root/encke && exec $1"
}

for step in "${steps[@]}"; do
  section "make $step"
  case $step in
    test) inside 'make test' ;;
    run)
      # Another server may have the default port; nothing listens on this one at the moment.
      port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
      inside "env ENCKE_LISTEN=127.0.0.1:$port make run" &
      server=$!
      # It builds first.
      until curl -sf -o /dev/null http://127.0.0.1:$port/readyz; do
        kill -0 "$server" 2> /dev/null || fail '`make run` ended before it served'
        sleep 0.5
      done
      address=http://127.0.0.1:$port/v1/stream/clean-root
      curl -sSf -X PUT "$address" -H 'Content-Type: text/plain' -d 'it serves'
      [ "$(curl -sSf "$address?offset=-1")" = 'it serves' ] || fail 'the stream does not have the record'
      kill -TERM "$(processes encke)"
      wait "$server" || fail "\`make run\` ended with $? after SIGTERM"
      echo '`make run` served, and stopped cleanly on SIGTERM'
      ;;
  esac
done

section "everything passes in a clean root of $suite"
