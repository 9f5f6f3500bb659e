#!/usr/bin/env bash
# Tries the packages of `make dist` in clean Debian roots, as a newcomer installs them.
#
#   sudo scripts/try-packages.sh [--older DEB] [--keep] [SUITE...]
#
# In a root of each suite (bookworm and trixie by default) it installs the .deb of an older build, serves by the unit's ExecStart, appends a record,
# upgrades to the .deb of target/dist, reads the record, changes the configuration, installs once more, removes and purges; it
# serves with the tarball's binary; and it boots the root with its systemd, under which it upgrades in place, restarts and stops the service, and
# removes the package while the socket listens.
# --older names the package of the older build; without it the new package gets an older version.
# Needs root, debootstrap, systemd-nspawn, curl and python3.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { echo "try-packages.sh: $1" >&2; exit 1; }
# shellcheck source=scripts/debian-root.sh
. "$repository/scripts/debian-root.sh"
dist=${CARGO_TARGET_DIR:-$repository/target}/dist

older='' suites=()
while [ $# -gt 0 ]; do
  case $1 in
    --older) older=$(realpath "${2:?--older needs a file}"); shift 2 ;;
    --keep) keep=yes; shift ;;
    -*) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) suites+=("$1"); shift ;;
  esac
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
one() { [ $# = 1 ] && [ -e "$1" ] || fail "$dist must have one of each package: make dist"; echo "$1"; }
package=$(one "$dist"/*.deb)
tarball=$(one "$dist"/*.tar.gz)
(cd "$dist" && sha256sum --quiet --check SHA256SUMS) || fail 'a checksum is wrong'

work=$(mktemp -d)
trap 'remove_roots; rm -rf "$work"' EXIT
if [ -z "$older" ]; then
  dpkg-deb --raw-extract "$package" "$work/older"
  sed -i 's/^Version: .*/Version: 0.0.1-1/' "$work/older/DEBIAN/control"
  older=$work/older.deb
  dpkg-deb --root-owner-group --build "$work/older" "$older" > /dev/null
fi

# Begins to serve in the root by a command line, as systemd would: as a user who may nothing, until the server says that it is ready.
serve() {
  # The directory that systemd makes for the user of the unit.
  mkdir -p "$root/var/lib/encke"
  chown -R 65534:65534 "$root/var/lib/encke"
  rm -f "$root/run/notify"
  python3 - "$root/run/notify" << 'PYTHON' &
import os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
    notified.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    notified.settimeout(60)
    while b"READY=1" not in notified.recv(4096).split(b"\n"):
        pass
PYTHON
  local listener=$!
  until [ -S "$root/run/notify" ]; do sleep 0.05; done
  # shellcheck disable=SC2086 # A command line.
  chroot "$root" setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    env -i NOTIFY_SOCKET=/run/notify ENCKE_LISTEN=127.0.0.1:0 $1 > "$work/server" 2>&1 &
  server=$!
  wait "$listener" || { cat "$work/server" >&2; fail "\`$1\` did not say that it is ready"; }
  address=$(sed -n 's/^listening on //p' "$work/server")/v1/stream/try-packages
}

# Ends the server, which must stop cleanly.
stop() {
  kill -TERM "$server"
  wait "$server" || { cat "$work/server" >&2; fail "the server ended with $? after SIGTERM"; }
}

install_package() {
  cp "$1" "$root/tmp/encke.deb"
  inside apt-get install --quiet --quiet --yes --no-install-recommends --allow-downgrades -o Dpkg::Options::=--force-confold /tmp/encke.deb > "$work/apt" 2>&1 ||
    { cat "$work/apt" >&2; fail "$1 cannot be installed"; }
}

expect() { [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"; }
installed_version() { inside dpkg-query --show --showformat '${Version}' encke; }
version_of() { dpkg-deb --field "$1" Version; }

# A property of the service in the booted root.
property() { booted systemctl show encke.service --property "$1" --value; }

# The service has ended as it was asked to: no process was killed, and none was lost from sight.
stopped_cleanly() {
  expect 'the service after its stop' "$(property ActiveState) $(property Result) $(property ExecMainStatus)" 'inactive success 0'
  # Linux 6.18 can list a dead thread of the process that has ended, which systemd then kills under the name of the thread.
  if booted journalctl --quiet --unit encke.service | grep -E '\((encke|exe)\) with signal SIGKILL|not our child|Failed with result|status=[1-9]'; then
    fail 'the service was killed, or systemd does not know its main process'
  fi
}

# Upgrades the service in place; its new process must be a child of systemd.
upgrade_in_place() {
  local before after
  before=$(property MainPID)
  booted encke upgrade /var/lib/private/encke > "$work/upgrade" || { cat "$work/upgrade" >&2; fail 'the service was not upgraded'; }
  after=$(property MainPID)
  [ "$before" != "$after" ] || fail "systemd takes process $before for the server after the upgrade"
  grep -q "process $after serves" "$work/upgrade" || fail "systemd takes process $after for the server: $(cat "$work/upgrade")"
  expect 'the parent of the server' "$(booted awk '/^PPid:/ { print $2 }' "/proc/$after/status")" 1
  expect 'the record' "$(booted curl -sSf "http://127.0.0.1:4437/v1/stream/try-packages?offset=-1")" kept
}

# A configuration that only root can read: the service does not start and names the remedy, and starts with that of docs/install.md.
with_secret_configuration() {
  local drop_in=$root/etc/systemd/system/encke.service.d
  booted systemctl stop encke.service
  booted chmod 0600 /etc/encke/encke.toml
  ! booted systemctl start encke.service 2> "$work/start" || fail 'the service reads a file of root'
  booted systemctl stop encke.service
  booted journalctl --quiet --unit encke.service | grep -q 'LoadCredential=' || fail 'the service does not name the remedy'
  mkdir -p "$drop_in"
  awk '/^```/ { if (wanted) printf "%s", text; text = ""; wanted = 0; next } { text = text $0 "\n" } /^LoadCredential=encke.toml/ { wanted = 1 }' \
    "$repository/docs/install.md" > "$drop_in/override.conf"
  booted systemctl daemon-reload
  booted systemctl reset-failed encke.service
  booted systemctl start encke.service
  expect 'the service with its configuration as a credential' "$(property ActiveState)" active
  upgrade_in_place
  booted systemctl stop encke.service
  expect 'the service after its stop' "$(property Result)" success
  rm -r "$drop_in"
  booted chmod 0644 /etc/encke/encke.toml
  booted systemctl daemon-reload
  booted systemctl start encke.service
}

# Under systemd: the package starts the service and restarts it when it is upgraded, also after upgrades in place, each of which can be stopped.
under_systemd() {
  local round stopping
  booted systemctl --version | head -n 1
  cp "$1" "$root/root/older.deb"
  cp "$package" "$root/root/encke.deb"
  booted dpkg --install --force-confnew /root/older.deb > "$work/dpkg" 2>&1 || { cat "$work/dpkg" >&2; fail 'the older package cannot be installed'; }
  expect 'the service' "$(property ActiveState)" active
  booted curl -sSf -X PUT http://127.0.0.1:4437/v1/stream/try-packages -H 'Content-Type: text/plain' -d kept
  # The second time it restarts a server that was upgraded in place.
  for round in 1 2; do
    booted dpkg --install /root/encke.deb > "$work/dpkg" 2>&1 || { cat "$work/dpkg" >&2; fail 'the package cannot be installed'; }
    expect 'the service after the upgrade of its package' "$(property ActiveState) $(property NRestarts)" 'active 0'
    upgrade_in_place
  done
  for round in 1 2 3 4 5 6; do
    upgrade_in_place
    [ "$round" != 3 ] || upgrade_in_place
    case $((round % 3)) in
      # A stop while a successor is being prepared or takes over.
      0)
        booted encke upgrade /var/lib/private/encke > /dev/null 2>&1 &
        stopping=$!
        sleep "0.0$round"
        booted systemctl stop encke.service
        wait "$stopping" || true
        ;;
      1) booted systemctl stop encke.service ;;
      2)
        booted systemctl reload encke.service
        booted systemctl restart encke.service
        expect 'the service after a restart' "$(property ActiveState)" active
        upgrade_in_place
        booted systemctl stop encke.service
        ;;
    esac
    stopped_cleanly
    # systemd refuses the sixth start within 10 s.
    booted systemctl reset-failed encke.service
    booted systemctl start encke.service
  done
  # systemd notices the end of a server that was upgraded.
  upgrade_in_place
  booted systemctl kill --kill-whom=main --signal=KILL encke.service
  until [ "$(property NRestarts) $(property ActiveState)" = '1 active' ]; do sleep 0.1; done
  expect 'the record' "$(booted curl -sSf --retry 20 --retry-connrefused "http://127.0.0.1:4437/v1/stream/try-packages?offset=-1")" kept
  with_secret_configuration
}

# The optional socket, which its administrator has enabled, goes with the package and leaves nothing behind.
removed_under_systemd() {
  booted systemctl stop encke.service
  booted systemctl reset-failed encke.service
  booted systemctl enable --now encke-listener.socket 2> "$work/enable" || { cat "$work/enable" >&2; fail 'the socket cannot be enabled'; }
  booted curl -sSf http://127.0.0.1:4437/healthz > /dev/null
  expect 'the socket and the service that it has started' "$(booted systemctl is-active encke-listener.socket encke.service | tr '\n' ' ')" 'active active '
  booted dpkg --install /root/encke.deb > "$work/dpkg" 2>&1 || { cat "$work/dpkg" >&2; fail 'the package cannot be installed'; }
  expect 'the socket after an upgrade of the package' "$(booted systemctl is-active encke-listener.socket)" active
  booted dpkg --remove encke > "$work/dpkg" 2>&1 || { cat "$work/dpkg" >&2; fail 'the package cannot be removed'; }
  expect 'the socket and the service after the removal' "$(booted systemctl is-active encke-listener.socket encke.service | tr '\n' ' ')" 'inactive inactive '
  if booted curl -sS http://127.0.0.1:4437/healthz > /dev/null 2>&1; then fail 'something listens after the removal'; fi
}

# Exposure at most 2 of 10.
if command -v systemd-analyze > /dev/null; then
  section 'the unit'
  systemd-analyze security --offline=true --threshold=20 --no-pager "$repository/packaging/systemd/encke.service" | tail -n 1
fi

for suite in "${suites[@]}"; do
  make_root "$suite" ca-certificates,curl,dbus,man-db,systemd-sysv
  # Services are started by hand here.
  printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  rm -f "$root/etc/dpkg/dpkg.cfg.d/excludes"
  inside apt-get update --quiet --quiet > /dev/null

  section "the older package, $(version_of "$older")"
  install_package "$older"
  expect 'the version' "$(installed_version)" "$(version_of "$older")"
  enabled=$(cd "$root/etc/systemd/system" && find . -type l -name 'encke*' | tr '\n' ' ')
  expect 'what starts by itself' "$enabled" './multi-user.target.wants/encke.service '
  [ -s "$root/usr/lib/systemd/system/encke-listener.socket" ] || fail 'the package has no encke-listener.socket'
  command=$(sed -n 's/^ExecStart=//p' "$root"/usr/lib/systemd/system/encke.service "$root"/lib/systemd/system/encke.service 2> /dev/null | head -n 1)
  serve "$command"
  curl -sSf -X PUT "$address" -H 'Content-Type: text/plain' -d 'kept'
  stop

  section "upgraded to $(version_of "$package")"
  install_package "$package"
  expect 'the version' "$(installed_version)" "$(version_of "$package")"
  serve "$command"
  expect 'the record' "$(curl -sSf "$address?offset=-1")" kept
  stop
  inside encke --version
  for file in /usr/share/bash-completion/completions/encke /usr/share/zsh/vendor-completions/_encke /usr/share/fish/vendor_completions.d/encke.fish \
    /usr/share/man/man1/encke.1.gz /usr/share/man/man1/encke-serve.1.gz /usr/share/doc/encke/operations.md; do
    [ -s "$root$file" ] || fail "the package has no $file"
  done
  inside man --pager=cat encke-serve | grep -q 'ENCKE_LISTEN' || fail 'man encke-serve does not name ENCKE_LISTEN'
  inside bash -c '. /usr/share/bash-completion/completions/encke && complete -p encke' | grep -q _encke || fail 'bash completes nothing'

  section 'installed again over a changed configuration, removed, purged'
  echo '# changed' >> "$root/etc/encke/encke.toml"
  install_package "$package"
  expect 'the configuration' "$(tail -n 1 "$root/etc/encke/encke.toml")" '# changed'
  inside apt-get remove --quiet --quiet --yes encke > /dev/null 2>&1
  [ ! -e "$root/usr/bin/encke" ] || fail 'the program is still there'
  [ -e "$root/etc/encke/encke.toml" ] || fail 'the configuration is gone'
  inside dpkg --purge encke > /dev/null 2>&1
  [ ! -e "$root/etc/encke/encke.toml" ] || fail 'the configuration is still there'
  [ -d "$root/var/lib/encke" ] || fail 'the data is gone'

  section 'the binary of the tarball'
  tar --extract --gzip --file "$tarball" --directory "$root/opt"
  serve "/opt/$(basename "$tarball" .tar.gz)/encke serve --data /var/lib/encke"
  expect 'the record' "$(curl -sSf "$address?offset=-1")" kept
  stop

  section 'under its systemd'
  # The service starts with an empty directory of its own.
  rm -rf "$root/var/lib/encke" "$root/usr/sbin/policy-rc.d"
  boot_root "$work/boot"
  under_systemd "$older"
  section 'removed under its systemd'
  removed_under_systemd
  halt_root
  section "everything passes in a clean root of $suite"
done
