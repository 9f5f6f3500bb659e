#!/usr/bin/env bash
# Makes the root of the container image: the server, the libraries that it is linked to, the certificates that it trusts, and nothing else.
#
#   packaging/image-root.sh BINARY DIRECTORY
set -euo pipefail
binary=$1 root=$2
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/data"
strip --strip-all -o "$root/usr/bin/encke" "$binary"
# Each library with the path at which the loader looks for it.
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do
  install -D "$library" "$root$library"
done
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
echo 'encke:x:10001:10001::/data:/nonexistent' > "$root/etc/passwd"
echo 'encke:x:10001:' > "$root/etc/group"
chown 10001:10001 "$root/data"
chmod 0700 "$root/data"
