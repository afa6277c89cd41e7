# Sourced by the other scripts with $here (this folder) and $kind (run or dev) set: goes to the repository root and makes
# .venv hold what they need. Sets $python. Nothing is installed again while the inputs are unchanged.
set -eu
cd "$here/.."

find_python() {
    for candidate in "${TILEWAVE_PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "tilewave needs Python 3.11 or newer; set TILEWAVE_PYTHON to its path" >&2
    return 1
}

if [ ! -x .venv/bin/python ]; then
    base=$(find_python)
    echo "creating .venv with $base" >&2
    "$base" -m venv .venv
fi
python=$PWD/.venv/bin/python

# The checkout's own path is part of the stamp: an editable install and its console script hold absolute paths.
stamp="$kind $(printf '%s\n' "$PWD" | cat - pyproject.toml requirements-dev.lock | cksum)"
if ! grep -qxF "$stamp" .venv/installed 2>/dev/null; then
    echo "installing tilewave into .venv (the first time takes a minute)" >&2
    # --no-compile: what is imported, a part of it, is compiled then.
    if [ "$kind" = dev ]; then
        "$python" -m pip install --quiet --no-compile -r requirements-dev.lock
        "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
    else
        "$python" -m pip install --quiet --no-compile --editable .
    fi
    echo "$stamp" >> .venv/installed
fi
