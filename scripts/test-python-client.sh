#!/usr/bin/env bash
# Checks the client in Python, builds its wheel, installs it into the virtual environment VENV (an absolute path), and tests it there.
#
#   scripts/test-python-client.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../clients/python"

bin=$1/bin dist=$1/dist
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"
rm -rf "$dist"
"$bin/python" -m build --no-isolation --outdir "$dist" .
"$bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$dist"/*.whl
"$bin/python" -m unittest discover --buffer --verbose --start-directory tests
