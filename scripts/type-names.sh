#!/usr/bin/env bash
# Fails when a public type name (struct, enum, union, trait or type alias, `pub` or `pub(crate)`) is defined in more than one
# place in crates/*/src. A name means one thing in the whole workspace.
set -euo pipefail
cd "$(dirname "$0")/.."

# Names that may have more than one definition: the name, then the reason. An entry without duplicates is an error.
allowed='
Mutex         the interface of parking_lot over the lock of the model checker, in two crates
Options       what a library is opened with, written as encke_log::Options and encke_mailbox::Options
SnapshotCell  one cell: over arc_swap, and over the lock of the model checker
'

mapfile -t files < <(find crates/*/src -name '*.rs' | LC_ALL=C sort)
faults=$(awk -v allowed="$allowed" '
    BEGIN {
        lines = split(allowed, entries, "\n")
        for (i = 1; i <= lines; i++)
            if (split(entries[i], words, " ") > 1) reason[words[1]] = 1
    }
    match($0, /^[ \t]*pub(\(crate\))?[ \t]+(unsafe[ \t]+)?(struct|enum|union|trait|type)[ \t]+/) {
        name = substr($0, RLENGTH + 1)
        sub(/[^A-Za-z0-9_].*/, "", name)
        if (name == "") next # In a macro.
        count[name]++
        places[name] = places[name] " " FILENAME ":" FNR
    }
    END {
        for (name in count)
            if (count[name] > 1 && !(name in reason)) print name ":" places[name]
        for (name in reason)
            if (count[name] < 2) print name ": allowed in scripts/type-names.sh, but not defined twice"
    }
' "${files[@]}" | LC_ALL=C sort)

if [ -n "$faults" ]; then
    printf 'public type names with more than one definition:\n%s\n' "$faults"
    exit 1
fi
