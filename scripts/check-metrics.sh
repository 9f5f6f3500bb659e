#!/usr/bin/env bash
# Fails when the rules of promtool find fault with the metrics of a running server. Usage: check-metrics.sh ENCKE PROMLINT
set -euo pipefail
encke=$1 promlint=$2
source "$(dirname "${BASH_SOURCE[0]}")/serve-for-check.sh"
# What has labels shows only once it has counted something.
curl -sf -X PUT "$url/v1/stream/s" -H 'Content-Type: text/plain' > "$data/answers"
curl -sf "$url/v1/stream/s" -H 'Content-Type: text/plain' -d x >> "$data/answers"
curl -s "$url/v1/stream/none" >> "$data/answers"
curl -sf -X PUT "$url/v1/pool/p" -d '{"type":"claim"}' >> "$data/answers"
curl -sf "$url/v1/pool/p" -d x >> "$data/answers"
curl -sf -X POST "$url/v1/pool/p/work?worker=w&wait=5" >> "$data/answers"
sleep 0.2 # The figures of pools are published ten times a second.
curl -sf "$url/metrics" > "$data/metrics"
for metric in encke_pool_worker_jobs_total encke_build_info process_cpu_seconds_total process_open_fds process_max_fds \
    process_resident_memory_bytes process_virtual_memory_bytes process_start_time_seconds process_threads; do
    grep -q "^$metric[ {]" "$data/metrics" || { echo "the metric $metric is missing" >&2; exit 1; }
done
"$promlint" < "$data/metrics"
echo "promlint accepts $(grep -c '^# TYPE' "$data/metrics") metrics"
