#!/usr/bin/env bash
# Runs a command, and a shell command line beside it whose output is printed at the end. Fails when either fails. Both end with this script.
#
#   scripts/beside.sh LOG LINE COMMAND...
set -uo pipefail

log=$1 line=$2
shift 2
# A process group for each, so that a signal reaches whatever they have started.
set -m
bash -c "$line" > "$log" 2>&1 < /dev/null &
beside=$!
"$@" < /dev/null &
command=$!
set +m
trap 'kill -TERM -- -$beside -$command 2> /dev/null; exit 130' INT TERM
wait $command
status=$?
wait $beside || status=$?
cat "$log"
exit $status
