#!/usr/bin/env bash
# The inference tests once more on a newer Python, where ArviZ 1.x is what pip installs.
# Takes python3.13 or python3.12 from the PATH or from ~/.pyenv/versions; says loudly when there is neither.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
    for version in 3.13 3.12; do
        for candidate in "$HOME"/.pyenv/versions/"$version"*/bin/python "$(command -v "python$version" || true)"; do
            if [ -x "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
}

python=$(find_python)
if [ -z "$python" ]; then
    echo "!!! NOT TESTED with ArviZ 1.x: no Python 3.12 or 3.13 found !!!" >&2
    exit 0
fi
[ -x .venv-newer/bin/python ] || "$python" -m venv .venv-newer
.venv-newer/bin/python -m pip install --quiet -c constraints.txt -e . pytest pytest-timeout
.venv-newer/bin/python -c 'import arviz_base, sys; print("Python", sys.version.split()[0], "with arviz-base", arviz_base.__version__)'
.venv-newer/bin/python -m pytest -q tests/test_inference.py tests/test_comparison.py tests/test_posterior.py
