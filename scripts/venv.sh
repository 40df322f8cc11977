# Sourced by the other scripts: `venv EXTRAS` makes .venv with this checkout and those extras, unless it is there.

find_python() {
    for python in ${PYTHON:-python3.11 python3.14 python3.13 python3.12 python3}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            return
        fi
    done
    echo "Python 3.11 or later is needed, with its venv module. PYTHON=/path/to/python names one." >&2
    exit 1
}

venv() {
    made=".venv/made-for-$1"
    [ -e "$made" ] && [ -z "$(find pyproject.toml setup.py tidelog/spark/_rows.c -newer "$made")" ] && return
    find_python
    set -x
    [ -x .venv/bin/pip ] || "$python" -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --editable ".[$1]"
    { set +x; } 2>/dev/null
    touch "$made"
}
