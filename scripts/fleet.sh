#!/usr/bin/env bash
# Runs a fleet on this machine: three brokers (nats-server with JetStream) and three nodes. Prints what to try, and removes everything
# when it ends (Ctrl-C).
#
#   ENCKE_BIN=target/release/encke NATS_SERVER=nats-server scripts/fleet.sh
#
# FLEET_PORT is the port of the first node (4441); the other nodes and the brokers have the ports behind it.
set -euo pipefail

encke=${ENCKE_BIN:?ENCKE_BIN is the server to run}
nats=${NATS_SERVER:-nats-server}
first=${FLEET_PORT:-4441}
directory=$(mktemp -d "${TMPDIR:-/tmp}/encke-fleet.XXXXXX")
processes=()

fail() { echo "fleet.sh: $1" >&2; exit 1; }
cleanup() {
  # The nodes first: they finish what they have begun.
  for process in "${processes[@]:3}" "${processes[@]:0:3}"; do
    kill -TERM "$process" 2> /dev/null && wait "$process" 2> /dev/null || true
  done
  rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

"$nats" --version > /dev/null 2>&1 || fail "$nats does not run: install nats-server, or set NATS_SERVER"
node() { echo $((first + $1 - 1)); }
broker() { echo $((first + 10 + $1)); }
route() { echo $((first + 20 + $1)); }

routes='' urls=''
for number in 1 2 3; do
  routes+="${routes:+,}nats-route://127.0.0.1:$(route "$number")"
  urls+="${urls:+,}nats://127.0.0.1:$(broker "$number")"
done
for number in 1 2 3; do
  # A broker syncs every two minutes unless it is told to sync always.
  cat > "$directory/broker-$number.conf" << CONF
server_name: broker-$number
listen: 127.0.0.1:$(broker "$number")
jetstream { store_dir: "$directory/broker-$number", sync_interval: always }
cluster { name: fleet, listen: 127.0.0.1:$(route "$number"), routes: [${routes//,/, }] }
CONF
  "$nats" -c "$directory/broker-$number.conf" > "$directory/broker-$number.log" 2>&1 &
  processes+=($!)
done
echo 'three brokers start'
for number in 1 2 3; do
  started=
  for _ in $(seq 20); do
    "$encke" serve --listen "$(node "$number")" --data "$directory/node-$number" --fleet "$urls" --node "node-$number" \
      > "$directory/node-$number.out" 2> "$directory/node-$number.log" &
    process=$!
    until grep -qs '^listening' "$directory/node-$number.out" || ! kill -0 "$process" 2> /dev/null; do sleep 0.1; done
    if kill -0 "$process" 2> /dev/null; then
      started=yes
      break
    fi
    # The brokers have no leader yet.
    sleep 0.5
  done
  [ -n "$started" ] || { cat "$directory/node-$number.log" >&2; fail "node $number did not start"; }
  processes+=("$process")
  echo "node-$number listens on http://127.0.0.1:$(node "$number")"
done
cat << TEXT

Try it: publish at one node, subscribe at another.

  curl -X PUT http://127.0.0.1:$(node 1)/v1/stream/hello -H 'Content-Type: application/json'
  curl -N 'http://127.0.0.1:$(node 2)/v1/stream/hello?offset=-1&live=sse' &
  curl http://127.0.0.1:$(node 3)/v1/stream/hello -H 'Content-Type: application/json' -d '{"text":"Hello, fleet"}'

Ask the fleet how it is, by its brokers:

  $encke fleet status --fleet $urls
  $encke fleet verify --fleet $urls

Kill a node or a broker: nodes ${processes[*]:3}, brokers ${processes[*]:0:3}. Data and logs in $directory. Stop with Ctrl-C.
TEXT
wait
