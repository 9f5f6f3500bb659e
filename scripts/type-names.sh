#!/usr/bin/env bash
# Fails when a public type name (struct, enum, union, trait or type alias, `pub` or `pub(crate)`) is defined in more than one
# place: of the server's crates, and of encke-bench, which is a program of its own.
#
# `pub(super)` is exempt: such a type is visible in one folder, whose name says the rest (the `Machine` of `doctor`, the `Plan` of
# `experiment/fsync`). Longer names would repeat the name of the folder.
set -euo pipefail
cd "$(dirname "$0")/.."

# Names that may have more than one definition: the name, then the reason. An entry without duplicates is an error.
allowed='
Mutex         the interface of parking_lot over the lock of the model checker, in two crates
SnapshotCell  one cell: over arc_swap, and over the lock of the model checker
'

faults=""
for program in server bench; do
case $program in
    server) crates=$(ls -d crates/*/src) ;;
    bench) crates=bench/src ;;
esac
mapfile -t files < <(find $crates -name '*.rs' | LC_ALL=C sort)
faults+=$(awk -v program="$program" -v allowed="$allowed" '
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
            if (program == "server" && count[name] < 2) print name ": allowed in scripts/type-names.sh, but not defined twice"
    }
' "${files[@]}" | LC_ALL=C sort)
done

if [ -n "$faults" ]; then
    printf 'public type names with more than one definition:\n%s\n' "$faults"
    exit 1
fi
