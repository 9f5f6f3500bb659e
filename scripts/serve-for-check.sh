# Sourced by checks of a running server: starts $encke on a free port. Sets $url, and $data, a directory that is removed at the end.
data=$(mktemp -d)
"$encke" serve --listen 127.0.0.1:0 --data "$data" --log warn > "$data/out" &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server || true; rm -rf "$data"' EXIT
until url=$(sed -n 's/^listening on //p' "$data/out") && [ -n "$url" ]; do
    kill -0 $server
    sleep 0.05
done
