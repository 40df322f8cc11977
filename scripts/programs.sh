# Sourced by test: `programs` installs the Debian packages of missing programs if it runs as root, and names what is missing.

# Tests talk through redis-cli, run the same script against a real redis-server, have Sentinel watch, show a page,
# complete commands in shells, have systemd check its units, or connect flows to real peers.
PROGRAMS="redis-cli:redis-tools redis-server:redis-server redis-sentinel:redis-sentinel chromium:chromium
    prometheus-redis-exporter:prometheus-redis-exporter etcd:etcd-server zsh:zsh fish:fish systemd-analyze:systemd
    pg_ctlcluster:postgresql mariadbd:mariadb-server mosquitto:mosquitto nats-server:nats-server rsyslogd:rsyslog"

programs() {
    packages=
    for program in $PROGRAMS; do
        command -v "${program%%:*}" >/dev/null 2>&1 || packages="$packages ${program##*:}"
    done
    if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        # The package's own server must not start: a policy of 101 forbids it, unless the machine has its own.
        policy=/usr/sbin/policy-rc.d ours=
        [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && ours=yes; }
        debian update || true
        # Together, since each call takes seconds; one by one if a package does not exist.
        # shellcheck disable=SC2086
        debian install -y $packages || for package in $packages; do debian install -y "$package"; done || true
        [ -z "$ours" ] || rm -f "$policy"
    fi
    for program in $PROGRAMS; do
        command -v "${program%%:*}" >/dev/null 2>&1 ||
            echo "NOTE: no ${program%%:*} here: the tests that need it will be SKIPPED (Debian: apt-get install ${program##*:})" >&2
    done
}

debian() {
    (set -x; DEBIAN_FRONTEND=noninteractive apt-get -qq "$@") >&2
}
