#!/usr/bin/env bash
# Runs a command in a network of its own, with a loopback interface only, so that default ports are free; and with /var/lib and
# /mnt of its own, which are directories in DIR.
#
#   scripts/own-network.sh DIR COMMAND...
#
# A normal user needs user namespaces, which Debian allows by default. Where the system allows no namespaces, the command runs without
# them, and OWN_NETWORK_DIR is not set.
set -euo pipefail

mkdir -p "$1"
dir=$(realpath "$1")
shift

namespaces=(unshare --net --mount)
[ "$(id -u)" = 0 ] || namespaces+=(--map-root-user)
if ! "${namespaces[@]}" true 2> /dev/null; then
  echo "this system does not allow namespaces (${namespaces[*]})" >&2
  exec "$@"
fi

mkdir -p "$dir/var-lib" "$dir/mnt"
export OWN_NETWORK_DIR=$dir
exec "${namespaces[@]}" bash -euo pipefail -c '
  mount --bind "$OWN_NETWORK_DIR/var-lib" /var/lib
  mount --bind "$OWN_NETWORK_DIR/mnt" /mnt
  # `ip link set lo up`, without the package iproute2.
  python3 -c "
import fcntl, socket, struct
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack(\"16sH14x\", b\"lo\", 0)
    name, flags = struct.unpack(\"16sH14x\", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack(\"16sH14x\", name, flags | IFF_UP))
"
  exec "$@"
' own-network "$@"
