#!/usr/bin/env python3
"""Writes encke.json, the dashboard for Grafana.

    contrib/grafana/dashboard.py            writes it
    contrib/grafana/dashboard.py --check    says whether it is up to date

In the queries below `{}` selects the chosen instances and `[]` is the interval that Grafana chooses for rates.
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("encke.json")
DOCS = "https://github.com/encke/encke/blob/main/docs/"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Sizes in units of Grafana's grid, which is 24 wide.
WIDTH, HEIGHT, STAT_WIDTH, STAT_HEIGHT = 8, 8, 3, 4


def query(text, legend="{{instance}}"):
    text = text.replace("{}", '{instance=~"$instance"}').replace("{ ", '{instance=~"$instance", ').replace("[]", "[$__rate_interval]")
    return {"expr": text, "legendFormat": legend}


def panel(kind, title, targets, unit, help, width, height, options, custom=None, thresholds=None):
    targets = [{"refId": chr(ord("A") + at), "datasource": SOURCE, **target} for at, target in enumerate(targets)]
    defaults = {"unit": unit, "custom": custom or {}}
    if thresholds:
        defaults["thresholds"] = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in thresholds]}
    return {
        "type": kind,
        "title": title,
        "description": help,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def stat(title, text, unit="short", legend="", help="", red=None):
    """A number of all chosen instances; from `red` on it is red."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "graphMode": "none" if red else "area",
        "colorMode": "value",
        "textMode": "name" if legend else "auto",
    }
    thresholds = [(None, "green"), *([(red, "red")] if red else [])]
    return panel("stat", title, [query(text, legend)], unit, help, STAT_WIDTH, STAT_HEIGHT, options, thresholds=thresholds)


def graph(title, *targets, unit="short", help=""):
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    custom = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "axisSoftMin": 0}
    return panel("timeseries", title, targets, unit, help, WIDTH, HEIGHT, options, custom)


def quantiles(title, metric, unit="s", help=""):
    """The median, the 99th percentile and the mean of a histogram, of all chosen instances."""
    buckets = f"sum by (le) (rate({metric}_bucket{{}}[]))"
    mean = f"sum(rate({metric}_sum{{}}[])) / sum(rate({metric}_count{{}}[]))"
    targets = [query(f"histogram_quantile({q}, {buckets})", legend) for q, legend in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"))]
    return graph(title, *targets, query(mean, "mean"), unit=unit, help=help)


def heatmap(title, metric, unit="s", help=""):
    target = {**query(f"sum by (le) (increase({metric}_bucket{{}}[]))", "{{le}}"), "format": "heatmap"}
    options = {"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Oranges"}, "cellGap": 0, "tooltip": {"show": True}}
    return panel("heatmap", title, [target], unit, help, WIDTH, HEIGHT, options)


def rates(title, *metrics, unit="short", help="", by="instance"):
    """Events per second: one metric by its labels, or several, each with its name."""

    def one(metric, name):
        legend = " ".join("{{%s}}" % label for label in by.split(", "))
        return query(f"sum by ({by}) (rate({metric}{{}}[]))", f"{legend} {name}".strip())

    return graph(title, *(one(metric, name) for metric, name in metrics), unit=unit, help=help)


# Rows of what not every server does.
FOLDED = {"Pools", "Subscriptions and webhooks", "Fleet", "Access, TLS and logs"}

# What an operator asks, row by row.
ROWS = {
    "Now": [
        stat("Instances", "count(encke_build_info{})"),
        stat("Versions", "count by (version) (encke_build_info{})", legend="{{version}}"),
        stat(
            "Failed logs",
            "sum(encke_log_poisoned{})",
            red=1,
            help=f"A log that has failed takes no records until a restart: [when the log fails]({DOCS}operations.md#when-the-log-fails).",
        ),
        stat(
            "History failed",
            "sum(encke_log_history_failed{})",
            red=1,
            help="Logs whose history takes no segments. Writes are refused when too many segments wait.",
        ),
        stat("Connections", "sum(encke_connections{})"),
        stat("Subscribers", "sum(encke_subscribers{})"),
        stat("Records", "sum(rate(encke_records_total{}[]))", "wps"),
        stat("Deliveries", "sum(rate(encke_deliveries_total{}[]))", "ops"),
    ],
    "Connections": [
        graph(
            "Connections and subscribers",
            query("encke_connections{}", "{{instance}} connections"),
            query("encke_subscribers{}", "{{instance}} subscribers"),
            query("encke_http2_connections{}", "{{instance}} of HTTP/2"),
            query("encke_http2_streams{}", "{{instance}} streams of HTTP/2"),
        ),
        rates(
            "Connections that come and go",
            ("encke_connections_accepted_total", "accepted"),
            ("encke_hangups_total", "closed by the client"),
            ("encke_accepts_held_total", "pauses of accepting"),
            unit="cps",
            help="Accepting pauses at `tuning.accept-rate`.",
        ),
        rates(
            "Connections closed by the server",
            ("encke_connections_closed_total", ""),
            by="reason",
            unit="cps",
            help=f"By reason. `stalled`, `vanished`, `lag_max`, `lag_age_max`, `no_longer_kept` and `buffers_max` are slow clients: [a stuck connection]({DOCS}debugging.md#a-stuck-connection).",
        ),
        graph(
            "Slow clients",
            query("encke_clients_behind{}", "{{instance}} clients behind"),
            query("sum by (instance) (rate(encke_blocked_total{}[]))", "{{instance}} full sockets per second"),
            query("sum by (instance) (rate(encke_catch_ups_total{}[]))", "{{instance}} parts read from the log per second"),
            help="Clients that read more slowly than records come, and what that costs.",
        ),
        rates(
            "Refused requests and connections",
            ("encke_refused_total", ""),
            by="reason",
            unit="reqps",
            help=f"By status, or by the limit that was reached: [limits]({DOCS}operations.md#limits).",
        ),
        rates("Requests", ("encke_requests_total", ""), unit="reqps"),
    ],
    "Publish and deliver": [
        rates(
            "Records and deliveries",
            ("encke_records_total", "records"),
            ("encke_deliveries_total", "deliveries"),
            unit="ops",
            help="A record counts once as a record, and once for each subscriber as a delivery.",
        ),
        rates(
            "Acknowledgements",
            ("encke_acknowledged_total", ""),
            by="level",
            unit="ops",
            help=f"By [level]({DOCS}operations.md#how-safe-an-acknowledgement-is) at the acknowledgement.",
        ),
        rates("Network", ("encke_bytes_received_total", "received"), ("encke_bytes_sent_total", "sent"), unit="Bps"),
        graph(
            "Delivery lag",
            query("max by (instance) (encke_ring_lag_seconds{})"),
            unit="s",
            help="Age of the oldest record whose delivery has not begun, on the slowest shard. Above `tuning.admission-delay` publishers are slowed.",
        ),
        graph(
            "Delivery lag in bytes",
            query("max by (instance) (encke_ring_lag_bytes{})"),
            unit="bytes",
            help="On the slowest shard. Above `tuning.admission` publishers are slowed.",
        ),
        graph(
            "Deliveries per system call",
            query("sum by (instance) (rate(encke_deliveries_total{}[])) / sum by (instance) (rate(encke_sends_total{}[]))"),
            help="Records that go out together. More under load.",
        ),
        graph(
            "Congested streams",
            query("encke_streams_congested{}", "{{instance}} streams"),
            query("sum by (instance) (rate(encke_acknowledgements_held_total{}[]))", "{{instance}} delayed acknowledgements per second"),
            help="Streams most of whose subscribers lag; their acknowledgements are delayed by up to `tuning.admission-wait`.",
        ),
        rates(
            "Work put off",
            ("encke_deferred_put_off_total", "turns"),
            ("encke_rests_total", "rounds of sends"),
            help="Shards without time: turns that left new connections, catching up and deadlines to the next one, and delayed rounds of sends.",
        ),
        rates("Compression", ("encke_compressions_total", ""), by="coding"),
    ],
    "Latency": [
        quantiles(
            "Sync of a batch",
            "encke_fdatasync_seconds",
            help=f"At level `synced` each append waits for one: [a slow append]({DOCS}debugging.md#a-slow-append).",
        ),
        heatmap("Syncs by duration", "encke_fdatasync_seconds"),
        quantiles(
            "Records in a commit", "encke_batch_records", unit="short", help="Near 1 at high load: producers wait for each response before they send."
        ),
        graph(
            "Oldest item of a mailbox",
            query("max by (instance, mailbox) (encke_mailbox_age_seconds{}) > 0.01", "{{instance}} {{mailbox}}"),
            unit="s",
            help=f"From 10 ms on. The thread behind the mailbox does not keep up: [queues]({DOCS}architecture.md#queues). `sequencer` holds commands, `shard-N` events, `reader-N` reads, `seal` segments.",
        ),
        quantiles("Look-up of a stream", "encke_look_up_seconds", help="Of streams that were not in memory."),
        quantiles("Handshake of TLS", "encke_tls_handshake_seconds", help="Mostly waiting for the client."),
    ],
    "Log": [
        graph(
            "Segments waiting",
            query("encke_log_segments_waiting{}", "{{instance}} log {{log}}"),
            help="Sealed segments that are not in history yet. At `tuning.waiting-segments-max` (3) writes wait.",
        ),
        graph(
            "Time that writes wait",
            query("rate(encke_log_waited_seconds_total{}[])", "{{instance}} log {{log}} for a segment"),
            query("rate(encke_log_rolled_seconds_total{}[])", "{{instance}} log {{log}} for the change to the next"),
            unit="percentunit",
            help="Share of the time.",
        ),
        graph(
            "Stalls",
            query("increase(encke_log_stalls_total{}[])", "{{instance}} log {{log}}"),
            help="Writes that took 50 ms or more without syncs. The server's log has `a write stalled` with the cause.",
        ),
        graph(
            "Slowest write",
            query("encke_log_longest_stall_seconds{}", "{{instance}} log {{log}}"),
            unit="s",
            help="Since the start, without the change to the next segment and syncs.",
        ),
        graph(
            "Time spent on syncs",
            query("rate(encke_log_syncing_seconds_total{}[])", "{{instance}} log {{log}}"),
            unit="percentunit",
            help="Share of the time, of syncs for any reason.",
        ),
        graph("Syncs", query("rate(encke_log_syncs_total{}[])", "{{instance}} log {{log}}"), unit="iops"),
        graph("Written", query("rate(encke_log_bytes_total{}[])", "{{instance}} log {{log}}"), unit="Bps"),
        graph(
            "Disk",
            query("encke_log_segment_bytes{}", "{{instance}} log {{log}} segments"),
            query("encke_log_history_bytes{}", "{{instance}} log {{log}} history"),
            unit="bytes",
            help="What the log takes. The free space is not a metric of Encke: see that of the machine.",
        ),
        graph(
            "Mailbox of the sequencer",
            query('encke_mailbox_depth{ mailbox=~"sequencer.*"}', "{{instance}} {{mailbox}} commands"),
            query('rate(encke_mailbox_refused_total{ mailbox=~"sequencer.*"}[])', "{{instance}} {{mailbox}} refused per second"),
            help="Commands that wait for the log. When it is full, appends get 503.",
        ),
    ],
    "Memory and processor": [
        graph("Memory of the process", query("process_resident_memory_bytes{}"), unit="bytes"),
        graph(
            "Buffers",
            query("encke_buffered_bytes{}", "{{instance}} buffered"),
            query("sum by (instance) (encke_mailbox_bytes{})", "{{instance}} mailboxes"),
            query("encke_pool_cache_bytes{}", "{{instance}} jobs"),
            unit="bytes",
            help="`buffered` are requests and output, which `--buffers-max` limits.",
        ),
        rates(
            "Buffers shed",
            ("encke_buffers_shed_total", ""),
            unit="cps",
            help="Connections that lost what they held, because memory ran short or their client held too much.",
        ),
        graph(
            "Streams",
            query("encke_streams{}", "{{instance}} all"),
            query("encke_streams_in_memory{}", "{{instance}} in memory"),
            query("encke_names_free{}", "{{instance}} names without a stream"),
            query("encke_patterns{}", "{{instance}} patterns"),
        ),
        rates(
            "Streams loaded and evicted",
            ("encke_stream_loads_total", "loaded"),
            ("encke_stream_evictions_total", "evicted"),
            unit="ops",
            help="As many loads as requests: `tuning.streams-hot-max` is too small.",
        ),
        graph("Processor", query("rate(process_cpu_seconds_total{}[])"), unit="percentunit", help="1 is one core."),
        graph(
            "Open files",
            query("process_open_fds{}", "{{instance}} open"),
            query("process_max_fds{}", "{{instance}} limit"),
            help="A connection is one.",
        ),
        graph("Mailboxes", query("encke_mailbox_depth{} > 0", "{{instance}} {{mailbox}}"), help="Items in each mailbox that is not empty."),
        graph("Threads that wait for room", query("sum by (instance, mailbox) (encke_mailbox_senders_waiting{}) > 0", "{{instance}} {{mailbox}}")),
    ],
    "Pools": [
        graph("Jobs", query("sum by (pool, state) (encke_pool_jobs{})", "{{pool}} {{state}}"), help=f"[Pools]({DOCS}pools.md)."),
        graph("Oldest job", query("max by (pool) (encke_pool_oldest_seconds{})", "{{pool}}"), unit="s", help="Age of the oldest unfinished job."),
        graph("Workers", query("sum by (pool) (encke_pool_workers{})", "{{pool}}"), help="Connected workers."),
        rates("Jobs done", ("encke_pool_done_total", ""), by="pool", unit="ops"),
        rates("Attempts retried", ("encke_pool_retried_total", ""), by="pool", unit="ops"),
        graph("Dead letters", query("sum by (pool) (increase(encke_pool_dead_total{}[]))", "{{pool}}"), help="Jobs that have failed for good."),
        graph(
            "Busiest workers",
            query("topk(10, sum by (pool, worker) (rate(encke_pool_worker_jobs_total{}[])))", "{{pool}} {{worker}}"),
            unit="ops",
            help="Jobs given to the ten busiest.",
        ),
        rates(
            "Jobs read from the log",
            ("encke_pool_loads_total", ""),
            unit="ops",
            help="Their content was not in memory: `tuning.pool-cache` is smaller than what waits.",
        ),
    ],
    "Subscriptions and webhooks": [
        graph(
            "Subscriptions",
            query("encke_subscriptions{}", "{{instance}} subscriptions"),
            query("encke_subscriptions_failing{}", "{{instance}} failing"),
            query("encke_subscription_links{}", "{{instance}} streams"),
            help=f"[Subscriptions]({DOCS}subscriptions.md) of workers, those whose last attempt to wake a worker has failed, and the streams that they follow.",
        ),
        rates(
            "Wakes",
            ("encke_subscription_wakes_total", "begun"),
            ("encke_subscription_leases_over_total", "not reported in time"),
            ("encke_subscription_events_refused_total", "refused by their streams"),
            ("encke_subscription_links_refused_total", "streams not followed"),
            unit="ops",
        ),
        rates("Calls of webhooks", ("encke_webhook_calls_total", ""), by="result", unit="ops"),
        graph("Calls under way", query("encke_webhook_calls_under_way{}"), help="At `tuning.webhooks-max` (32) calls wait."),
    ],
    "Fleet": [
        graph(
            "Time behind the order",
            query("encke_fleet_lag_seconds{}", "{{instance}} log {{log}}"),
            unit="s",
            help=f"How long a node lacks the oldest message that it has not applied: [a fleet]({DOCS}fleet.md#look-at-a-fleet).",
        ),
        graph("Messages behind the order", query("encke_fleet_lag_messages{}", "{{instance}} log {{log}}")),
        graph(
            "Silence of the brokers",
            query("encke_fleet_silence_seconds{}", "{{instance}} log {{log}}"),
            unit="s",
            help="At `--fleet-silence-max` (10 s) the node is not ready and closes its subscribers.",
        ),
        graph(
            "Round trip to a broker",
            query("encke_fleet_round_trip_seconds{}", "{{instance}} log {{log}}"),
            unit="s",
            help="Until the last message of the node was confirmed.",
        ),
        graph(
            "Dispatcher",
            query("encke_fleet_dispatcher{}"),
            query("encke_fleet_pool_requests_held{}", "{{instance}} requests that wait for it"),
            help="1 at the node that dispatches jobs.",
        ),
        rates(
            "Trouble",
            ("encke_fleet_retries_total", "messages sent again"),
            ("encke_fleet_given_up_total", "batches given up"),
            ("encke_fleet_takeovers_total", "takeovers"),
            ("encke_fleet_pool_sessions_broken_total", "broken connections for jobs"),
            unit="ops",
        ),
        graph("Applied", query("rate(encke_fleet_batches_total{}[])", "{{instance}} log {{log}}"), unit="ops", help="Batches of all nodes."),
        graph(
            "Difference of positions",
            query("max by (log) (encke_fleet_applied_position{}) - min by (log) (encke_fleet_applied_position{})", "log {{log}}"),
            help="Between the first and the last node, at the moments when they were asked.",
        ),
        graph("Commands in flight", query("encke_fleet_commands_in_flight{}", "{{instance}} log {{log}}")),
    ],
    "Access, TLS and logs": [
        rates("Refused credentials", ("encke_access_denied_total", ""), by="reason", unit="reqps", help="By the reason that the audit log gives."),
        rates(
            "Verified tokens",
            ("encke_token_cache_hits_total", "verified before"),
            ("encke_token_cache_misses_total", "verified now"),
            ("encke_token_cache_evictions_total", "evicted"),
            unit="ops",
            help="Many evictions beside many misses: `access.token-cache` is too small.",
        ),
        graph(
            "Keys, tokens and revocations",
            query("encke_token_cache_entries{}", "{{instance}} tokens"),
            query("encke_issuer_keys{}", "{{instance}} keys"),
            query("encke_unknown_keys{}", "{{instance}} unknown keys"),
            query("encke_revocations{}", "{{instance}} revocations"),
        ),
        rates("Fetches of keys", ("encke_key_fetches_total", ""), by="outcome", unit="ops"),
        rates("Handshakes", ("encke_tls_handshakes_total", ""), by="kind", unit="cps"),
        rates(
            "Failed handshakes",
            ("encke_tls_handshakes_failed_total", ""),
            by="reason",
            unit="cps",
            help=f"By reason: [metrics]({DOCS}operations.md#health-and-metrics).",
        ),
        graph(
            "Handshakes now",
            query("encke_tls_handshakes_under_way{}", "{{instance}} under way"),
            query("encke_tls_handshakes_waiting{}", "{{instance}} waiting"),
            query("rate(encke_tls_handshakes_held_total{}[])", "{{instance}} pauses of accepting per second"),
        ),
        rates("Streams of HTTP/2 cut by the server", ("encke_http2_streams_cut_total", ""), by="reason", unit="cps"),
        graph(
            "Log lines dropped",
            query("sum by (instance, reason) (increase(encke_access_log_dropped_total{}[]))", "{{instance}} access log {{reason}}"),
            query("sum by (instance, reason) (increase(encke_audit_log_dropped_total{}[]))", "{{instance}} audit log {{reason}}"),
        ),
    ],
}


def panels():
    """All panels with their places, rows included. What is below a folded row is inside it."""
    number, y, found = 0, 0, []
    for title, members in ROWS.items():
        folded = title in FOLDED
        number += 1
        row = {"type": "row", "title": title, "id": number, "collapsed": folded, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        found.append(row)
        x, y = 0, y + 1
        for member in members:
            place = member["gridPos"]
            if x + place["w"] > 24:
                x, y = 0, y + place["h"]
            number += 1
            member = {**member, "id": number, "gridPos": {"x": x, "y": y, **place}}
            (row["panels"] if folded else found).append(member)
            x += place["w"]
        y += members[-1]["gridPos"]["h"]
    return found


def dashboard():
    return {
        "title": "Encke",
        "uid": "encke",
        "tags": ["encke"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [
            {"type": "link", "title": "Operations", "url": DOCS + "operations.md"},
            {"type": "link", "title": "Debugging", "url": DOCS + "debugging.md"},
        ],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Instance",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(encke_build_info, instance)",
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Restarts",
                    "datasource": SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "titleFormat": "restart of {{instance}}",
                    "expr": 'changes(process_start_time_seconds{instance=~"$instance"}[1m]) > 0',
                },
            ]
        },
        "panels": panels(),
    }


def text():
    """JSON with a line for each panel, so that a change shows what it changes."""
    members = []
    for name, value in dashboard().items():
        if name == "panels":
            lines = []
            for one in value:
                inner = ",\n".join("      " + json.dumps(member) for member in one.get("panels", []))
                line = json.dumps({**one, "panels": []}) if "panels" in one else json.dumps(one)
                lines.append("    " + (line.removesuffix("[]}") + f"[\n{inner}\n    ]}}" if inner else line))
            members.append('  "panels": [\n' + ",\n".join(lines) + "\n  ]")
        else:
            members.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(members) + "\n}\n"


if "--check" not in sys.argv:
    FILE.write_text(text())
elif not FILE.exists() or FILE.read_text() != text():
    sys.exit("contrib/grafana/encke.json is not what dashboard.py writes: run it")
