#!/usr/bin/env bash
# Runs a command, and a shell command line beside it whose output is printed at the end. Fails when either fails.
#
#   scripts/beside.sh LOG LINE COMMAND...
set -uo pipefail

log=$1 line=$2
shift 2
bash -c "$line" > "$log" 2>&1 &
beside=$!
trap 'kill $beside 2> /dev/null' INT TERM
"$@"
status=$?
wait $beside || status=$?
cat "$log"
exit $status
