# Sourced by the other scripts: `venv EXTRAS` makes .venv with tidelog and those extras, unless it is there.
#
# tidelog is installed editable there: the checkout is what runs. A .venv that has an ordinary installation keeps it, and
# that is what scripts run; it gets the extras only.

find_python() {
    for python in ${PYTHON:-python3.11 python3.14 python3.13 python3.12 python3}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            return
        fi
    done
    echo "Python 3.11 or later is needed, with its venv module. PYTHON=/path/to/python names one." >&2
    exit 1
}

# How much there is to download, and how long that and the installation may take.
effort() {
    case ",$1," in
    *,spark,* | *,jobs,*) echo "some 600 MB, most of it PySpark: one minute, or six where its wheel has to be built" ;;
    *,demo,*) echo "some 140 MB: up to two minutes" ;;
    *) echo "some 130 MB: up to two minutes" ;;
    esac
}

# pip install. On a terminal pip shows its own progress; elsewhere a line for whatever takes long, and everything if it fails.
install() {
    echo "+ .venv/bin/pip install $*" >&2
    if [ -t 1 ]; then
        .venv/bin/pip install --disable-pip-version-check "$@"
        return
    fi
    rm -f .venv/failed
    { .venv/bin/pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 || touch .venv/failed; } |
        tee .venv/pip.log |
        awk '/Downloading .* MB\)|Building .*: started|still running|^Installing collected|^Successfully installed/ {
            sub(/^ +/, ""); print "    " substr($0, 1, 100); fflush() }' >&2
    if [ -e .venv/failed ]; then
        cat .venv/pip.log >&2
        return 1
    fi
}

venv() {
    made=".venv/made-for-$1"
    [ -e "$made" ] && [ -z "$(find pyproject.toml setup.py persistence/_*.c respserver/clients/_*.c storage/*/_*.[ch] tidelog/arrow/_*.[ch] -newer "$made")" ] && return
    find_python
    echo "Installing tidelog's needs for $1 into .venv: $(effort "$1")" >&2
    [ -x .venv/bin/pip ] || "$python" -m venv .venv
    if ls -d .venv/lib/python3*/site-packages/_tidelog_server/respserver >/dev/null 2>&1; then
        install "tidelog[$1]"
    else
        install --editable ".[$1]"
    fi
    rm -f .venv/spark.jsa # scripts/pytest.sh: of the pyspark before
    touch "$made"
}
