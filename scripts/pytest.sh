# Sourced by test and test-compiled: `tests PYTHON ARGS` runs pytest, four tests at a time: they wait for servers more
# than they compute. A build machine (CI) runs six at a time. `tests_again PYTHON ARGS` does the same, and then runs
# each failed test again, alone, as CPython's own test runner does. Only tests that fail again count as failed. It prints
# the names of all of them: those that then pass may be unreliable. `tests_twice PYTHON EXTRAS` runs all tests, then the
# server's tests compiled, and ends the script.

# Images of containers often set this. Without bytecode, each server and program that a test starts compiles its modules
# again, and each of pytest's processes rewrites all assertions: 26 s of computation instead of 8.
unset PYTHONDONTWRITEBYTECODE

# All tests take about 3,100 s of CPU. With four at a time, two cores took 37 minutes, and were idle for a quarter of them.
at_once=4
[ -z "${CI:-}" ] || at_once=6

# worksteal: a process that has nothing left takes half of what another one has. Otherwise one that happened to get the
# tests of Spark together with the last files runs them alone in the end, for a minute or more.
tests() {
    python=$1
    shift
    (set -x; "$python" -m pytest -n "$at_once" --dist worksteal "$@")
}

# Creates an archive of the classes that Spark loads, for the JVMs of tests (tests/conftest.py): about 100 of them start,
# and each computes for 4 s less. It costs 33 s of CPU. A JVM writes its archive when it ends, after Python. The archive is
# complete when the JVM has closed its output.
spark_archive() {
    archive=$PWD/.venv/spark.jsa
    [ ! -e "$archive" ] && command -v java >/dev/null 2>&1 || return 0
    folder=$(mktemp -d)
    SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=$archive.new" \
        "$1" -m tests.tidelog.spark.archive "$folder" 2>&1 | cat >.venv/archive.log
    rm -rf "$folder"
    [ ! -e "$archive.new" ] || mv "$archive.new" "$archive"
}

tests_again() {
    failed=.pytest_cache/v/cache/lastfailed
    rm -f "$failed"
    status=0
    tests "$@" || status=$?
    # 1: tests failed. Many failures are no chance, and take long.
    [ "$status" = 1 ] && [ "$(grep -c '": true' "$failed")" -le 5 ] || return "$status"
    echo "Failed among others, and now run alone:" >&2
    sed -n 's/^ *\("[^ ].*"\): true,\{0,1\}$/    \1/p' "$failed" >&2
    (set -x; "$1" -m pytest -n 1 --last-failed --last-failed-no-failures none)
}

# Tests wait more than they compute: the compilation, of three minutes, is done beside them with the lowest priority.
tests_twice() {
    EXTRAS=$2 COMPILED=only nice -n 19 scripts/test-compiled >.venv/compiled.log 2>&1 &
    compiler=$!
    result=0
    tests_again "$1" || result=$?
    wait "$compiler" || { cat .venv/compiled.log >&2; [ "$result" != 0 ] || result=1; }
    [ "$result" = 0 ] || exit "$result"
    EXTRAS=$2 COMPILED=before exec scripts/test-compiled
}
