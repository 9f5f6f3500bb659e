#!/usr/bin/env bash
# Builds the container image of Containerfile from a build of this machine, without a daemon and without other images; if run as root, scripts/try-image.sh
# tries it. Needs buildah.
#
#   scripts/image.sh [BINARY]
#
# The image is encke:VERSION in the storage of buildah, and target/dist/encke-VERSION.oci.tar.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
binary=${1:-$target/release/encke}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
out=$target/dist
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

# What the last stage of the file says, to its end.
value() { sed -n "/^FROM scratch/,\$s/^$1 //p" Containerfile; }

root=$(mktemp -d)
trap 'rm -rf "$root" "$root.data"' EXIT
packaging/image-root.sh "$binary" "$root"
container=$(buildah from scratch)
trap 'rm -rf "$root" "$root.data"; buildah rm "$container" > /dev/null' EXIT
mv "$root/data" "$root.data"
buildah copy --quiet "$container" "$root" / > /dev/null
buildah copy --quiet --chown "$(value USER)" --chmod 0700 "$container" "$root.data" /data > /dev/null
environment=()
for pair in $(value ENV); do environment+=(--env "$pair"); done
buildah config "${environment[@]}" --user "$(value USER)" --workingdir "$(value WORKDIR)" --volume "$(value VOLUME)" \
  --port "$(value EXPOSE)" --stop-signal "$(value STOPSIGNAL)" --entrypoint "$(value ENTRYPOINT)" --cmd serve "$container"
mkdir -p "$out"
image=$(buildah commit --quiet "$container" "encke:$version")
buildah push --quiet "$image" "oci-archive:$out/encke-$version.oci.tar:encke:$version"
ls -l --block-size=1 "$out/encke-$version.oci.tar"
# Only root can begin it as another user.
[ "$(id -u)" != 0 ] || scripts/try-image.sh "encke:$version"
