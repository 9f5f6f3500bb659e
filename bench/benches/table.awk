# Makes a Markdown page of what the bench `channels` prints:
#
#   cargo bench --manifest-path bench/Cargo.toml --bench channels -- --discard-baseline | awk -f bench/benches/table.awk

BEGIN {
	split("encke_batch encke_each crossbeam async_channel tokio_batch tokio_tasks", columns)
	while ((getline line < "bench/Cargo.lock") > 0) {
		split(line, words, "\"")
		if (line ~ /^name = /) name = words[2]
		else if (line ~ /^version = /) version[name] = words[2]
	}
}

# A long name stands on a line of its own.
/^[0-9]+_senders\// {
	split($1, path, "/")
	senders = path[1]
	channel = path[2]
	sub(/_senders$/, "", senders)
	if (!(senders in seen)) {
		seen[senders] = 1
		order[++rows] = senders
	}
}

# Lines with percent compare with an earlier run.
/thrpt:/ && !/%/ {
	gsub(/[\[\]]/, "")
	for (n = 1; n <= NF && $n != "thrpt:"; n++);
	rate[senders, channel] = sprintf("%.1f (%.1f to %.1f)", million(n + 3), million(n + 1), million(n + 5))
}

function million(field, factor) {
	factor = 1e-6
	if ($(field + 1) ~ /^K/) factor = 1e-3
	if ($(field + 1) ~ /^M/) factor = 1
	if ($(field + 1) ~ /^G/) factor = 1e3
	return $field * factor
}

END {
	print "# The mailbox beside other channels\n"
	printf "`make bench-report`, %s, on %s cores. ", strftime("%Y-%m-%d", systime(), 1), cores
	print "Million items of 32 bytes a second through a channel of 8,192 places, from that many senders to one receiver: " \
		"the middle estimate, and its interval at 95 %. " \
		"Compared with crossbeam-channel " version["crossbeam-channel"] ", async-channel " version["async-channel"] \
		" and tokio " version["tokio"] "'s mpsc.\n"
	head = "| senders |"
	rule = "|---:|"
	for (n = 1; n in columns; n++) {
		head = head " " columns[n] " |"
		rule = rule "---:|"
	}
	print head "\n" rule
	for (row = 1; row <= rows; row++) {
		cells = "| " order[row] " |"
		for (n = 1; n in columns; n++) cells = cells " " rate[order[row], columns[n]] " |"
		print cells
	}
	print "\nSenders are threads that wait when the channel is full; those of `tokio_tasks` are tasks of a runtime with a " \
		"thread for each core. `_batch` and `_tasks` take all that waits at a time, the others one item."
	if (rows == 0) exit 1
}
