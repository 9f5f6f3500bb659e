# Clean Debian roots, for scripts that try something in one; to be sourced by a script that runs as root and has `fail MESSAGE`. The roots are made below
# $TMPDIR (/var/tmp by default) from the mirror of this machine's apt sources, and removed when the script ends; with `keep` they are left.

keep=''
roots=()
# The container with the systemd of a root, and its first process.
container='' leader=''

section() { printf '\n=== %s (%s)\n' "$1" "$(date +%T)"; }

# Mirror and suite of the first source of Debian's main archive.
debian_source() {
  apt-get indextargets --format '$(SITE) $(RELEASE) $(ORIGIN) $(LABEL) $(COMPONENT) $(CREATED_BY)' |
    awk '$3 == "Debian" && $4 == "Debian" && $5 == "main" && $6 == "Packages" && $2 !~ /-/ { print $1, $2; exit }' | grep . ||
    fail "no Debian source is in this machine's apt sources: apt-get update"
}

# Makes a root of a suite with these packages, separated by commas; its path is in $root.
make_root() {
  local suite=$1 packages=$2 mirror file
  [ "$(id -u)" = 0 ] || fail 'run it as root'
  command -v debootstrap > /dev/null || fail 'debootstrap is missing: apt-get install debootstrap'
  read -r mirror _ < <(debian_source)
  root=$(mktemp -d "${TMPDIR:-/var/tmp}/encke-clean-root.XXXXXX")
  roots+=("$root")
  chmod 755 "$root"
  section "a root of $suite in $root"
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" |
    sed -un 's/^I: \(Retrieving Packages\|Configuring [a-d]\|Base system.*\)/  \1/p'
  # A mount of its own, because `unshare --mount` needs one as its root.
  mount --bind --make-private "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  mount --rbind --make-rslave /dev "$root/dev"
  # How this machine reaches its network: names, proxies and certificates.
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  # Debian's installer writes this file; debootstrap does not.
  echo '127.0.0.1 localhost' > "$root/etc/hosts"
  for file in /etc/apt/apt.conf.d/*proxy*; do
    [ ! -e "$file" ] || install -D -m 600 "$file" "$root$file"
  done
}

# Runs a command in the root, with a clean environment.
inside() {
  env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} chroot "$root" "$@"
}

# Boots the root with its own systemd, without a network. What it prints goes to a file.
boot_root() {
  local mounted
  command -v systemd-nspawn > /dev/null || fail 'systemd-nspawn is missing: apt-get install systemd-container'
  for mounted in dev sys proc; do umount --recursive --lazy "$root/$mounted"; done
  systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --private-network --resolv-conf=off > "$1" 2>&1 < /dev/null &
  container=$!
  until leader=$(pgrep -P "$container") && [[ $(booted systemctl is-system-running 2> /dev/null) =~ running|degraded ]]; do
    kill -0 "$container" 2> /dev/null || { cat "$1" >&2; fail 'the root does not boot'; }
    sleep 0.2
  done
}

# Runs a command in the booted root, with a clean environment.
booted() {
  nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup --root --wd -- \
    env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

halt_root() {
  [ -n "$container" ] || return 0
  kill -TERM "$container" 2> /dev/null || true
  wait "$container" || true
  container=''
}

# The processes that run in a root, those of that name only if one is given.
processes() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/root" 2> /dev/null)" = "$1" ] || continue
    [ -z "${2:-}" ] || [ "$(cat "$process/comm" 2> /dev/null)" = "$2" ] || continue
    echo "${process#/proc/}"
  done
}

remove_roots() {
  local left mounted one
  halt_root
  for one in "${roots[@]}"; do
    left=$(processes "$one")
    # shellcheck disable=SC2086 # Several numbers.
    [ -z "$left" ] || kill -KILL $left 2> /dev/null || true
    for mounted in dev sys proc; do
      ! mountpoint -q "$one/$mounted" || umount --recursive --lazy "$one/$mounted"
    done
    ! mountpoint -q "$one" || umount --lazy "$one"
    if [ -n "$keep" ]; then
      echo "the root is left in $one"
    elif findmnt -rn -o TARGET | grep -qF "$one/"; then
      echo "not removed, because something is still mounted in it: $one" >&2
    else
      rm -rf --one-file-system "$one"
    fi
  done
}
trap remove_roots EXIT
trap 'exit 130' INT TERM
