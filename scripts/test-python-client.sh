#!/usr/bin/env bash
# Checks the client in Python, builds its wheel, installs it into the virtual environment VENV (an absolute path), and tests it there; then
# in an environment below VENV for each other version that the client supports and this machine has.
#
#   scripts/test-python-client.sh VENV
#
# Interpreters are python3.9, python3.10 and so on of the path, and those of PYTHONS, a list of paths that are separated by spaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../clients/python"

bin=$1/bin dist=$1/dist
versions=(3.9 3.10 3.11 3.12 3.13)
# Tests that kill servers and workers take minutes and hardly depend on the version, so they run in one version only.
short=(test_forks test_responses test_streams test_values test_waiting)

version_of() { "$1" -c 'import sys; print("{}.{}".format(*sys.version_info))' 2> /dev/null; }

interpreter() {
	local candidate
	for candidate in ${PYTHONS:-} "python$1"; do
		if [ "$(version_of "$candidate")" = "$1" ]; then
			echo "$candidate"
			return
		fi
	done
}

"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"
rm -rf "$dist"
"$bin/python" -m build --no-isolation --outdir "$dist" .
install=(install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$dist"/*.whl)
"$bin/pip" "${install[@]}"
# Checks the types of the sources and of a program that uses the package.
for version in "${versions[@]}"; do node_modules/.bin/pyright --pythonpath "$bin/python" --pythonversion "$version"; done
"$bin/python" -m unittest discover --buffer --verbose --start-directory tests

missing=()
for version in "${versions[@]}"; do
	[ "$version" != "$(version_of "$bin/python")" ] || continue
	python=$(interpreter "$version")
	if [ -z "$python" ]; then
		missing+=("$version")
		continue
	fi
	venv=$1/python$version
	if ! cmp --silent requirements-tests.txt "$venv/installed"; then
		"$python" -m venv --clear "$venv"
		"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements-tests.txt
		cp requirements-tests.txt "$venv/installed"
	fi
	echo "Python $version: $python"
	"$venv/bin/pip" "${install[@]}"
	(cd tests && "$venv/bin/python" -m unittest --buffer "${short[@]}")
done
[ ${#missing[@]} = 0 ] || echo "not tested, because this machine does not have them: Python ${missing[*]} (PYTHONS names interpreters)"
