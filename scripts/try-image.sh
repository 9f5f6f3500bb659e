#!/usr/bin/env bash
# Tries the image of `make image` as a container runtime would begin it: as its user, on a read-only root, with a volume. Needs root and buildah.
#
#   sudo scripts/try-image.sh IMAGE
set -euo pipefail
fail() { echo "try-image.sh: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail 'run it as root'
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

container=$(buildah from "${1:?the name of an image}")
work=$(mktemp -d)
trap 'rm -rf "$work"; buildah rm "$container" > /dev/null' EXIT
root=$(buildah mount "$container")
config() { buildah inspect --type container --format "{{$1}}" "$container"; }
user=$(config .OCIv1.Config.User)
[ "$user" = "${user#0}" ] || fail "its user is $user"
mapfile -t settings < <(config 'range .OCIv1.Config.Env}}{{println .}}{{end')
entry=$(config 'index .OCIv1.Config.Entrypoint 0')
mkdir "$work/data"
chown "$user" "$work/data"

# Becomes the program in the image, with these arguments.
inside() {
  # shellcheck disable=SC2016 # Variables of the inner shell.
  exec unshare --mount --propagation private bash -euc '
    mount --bind "$1" "$1"
    mount --options remount,bind,ro "$1"
    mount --bind "$2" "$1/data"
    exec env --ignore-environment "${@:4}" "$(command -v chroot)" --userspec="$3" "$1" '"'$entry' $*" \
    inside "$root" "$work/data" "$user" "${settings[@]}" ENCKE_LISTEN=127.0.0.1:0 ENCKE_ADMIN_LISTEN=none
}

inside serve > "$work/output" 2>&1 &
server=$!
until url=$(sed -n 's/^listening on //p' "$work/output") && [ -n "$url" ]; do
  kill -0 "$server" 2> /dev/null || { cat "$work/output" >&2; fail 'the server has ended'; }
  sleep 0.1
done
(inside health "$url")
address=$url/v1/stream/try-image
curl -sSf -X PUT "$address" -H 'Content-Type: text/plain' -d 'it serves'
[ "$(curl -sSf "$address?offset=-1")" = 'it serves' ] || fail 'the stream does not have the record'
kill -TERM "$server"
wait "$server" || fail "the server ended with $? after SIGTERM"
! (inside serve --data /elsewhere) > "$work/output" 2>&1 || fail 'its root can be written'
grep -qi 'read-only' "$work/output" || { cat "$work/output" >&2; fail 'its root can be written'; }
echo "$1 serves as $user on a read-only root, and stops cleanly on SIGTERM"
