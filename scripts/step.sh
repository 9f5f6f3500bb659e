#!/usr/bin/env bash
# Runs one step of `make test` or `make test-all` and prints the seconds that it took.
#
#   scripts/step.sh NAME COMMAND...
#   scripts/step.sh --summary TITLE    prints the steps since the last summary, and the size of the target folder
#
# The steps are collected in $STEPS, if it is set.
set -uo pipefail

steps=${STEPS:-/dev/null}
mkdir -p "$(dirname "$steps")"

if [ "$1" = --summary ]; then
  printf '\n=== %s\n' "$2"
  [ -f "$steps" ] || exit 0
  cat "$steps"
  printf '%6d MB in %s\n' "$(du -sm "$(dirname "$steps")" | cut -f 1)" "$(dirname "$steps")"
  rm -f "$steps"
  exit 0
fi

name=$1
shift
begin=$SECONDS
printf '\n=== %s (%s)\n' "$name" "$(date +%T)"
"$@"
status=$?
took=$((SECONDS - begin))
if [ $status = 0 ]; then
  printf -- '--- %s: %d s\n' "$name" $took
else
  printf -- '--- %s FAILED after %d s\n' "$name" $took
fi
printf '%6d s  %s\n' $took "$name" >> "$steps"
exit $status
