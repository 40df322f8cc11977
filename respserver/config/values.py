"""The typed values of all directives, and how they are loaded from files, standard input and flags.

Rule 1: the directives are declared in ``directives``; this module treats all of them alike.
Rule 2: the last value wins, in the order: defaults, file, standard input (``-``), flags. Lines of ``save`` are
cumulative; ``client-output-buffer-limit`` is set by class, ``rename-command`` by command.

This module reads only configuration files and the name of the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from persistence.tiering.objectstore import problem_of
from respserver.config import conffile
from respserver.config.conffile import ConfigError, ConfigLine
from respserver.config.directives import ALIASES, DIRECTIVES, Directive
from respserver.config.ignored import IGNORED, reason_ignored
from respserver.config.valuetypes import GROUP_NAME, INSYNC, Limits, SavePoint, Value

OPEN_TO_ALL = "protected-mode is off and no password is set: every client that reaches this server has full access"


class Values:
    """All directives as attributes (``tcp-keepalive`` is ``tcp_keepalive``). Sizes are in bytes.

    ``Values()`` has the defaults. Texts have surrogateescapes for bytes that are not UTF-8.
    """

    # network
    bind: list[str]  # as written; "-::1" means "if that address exists"
    port: int  # 0: none
    protected_mode: bool
    tcp_backlog: int
    unixsocket: str  # "": none
    unixsocketperm: int  # 0: determined by the umask
    timeout: int  # seconds; 0: never
    tcp_keepalive: int  # seconds; 0: none
    maxclients: int
    # TLS
    tls_port: int  # 0: none
    tls_cert_file: str
    tls_key_file: str
    tls_key_file_pass: str
    tls_ca_cert_file: str
    tls_ca_cert_dir: str
    tls_auth_clients: str  # no, yes, optional
    tls_protocols: list[str]  # []: TLSv1.2 TLSv1.3
    tls_ciphers: str
    tls_ciphersuites: str
    tls_prefer_server_ciphers: bool
    tls_dh_params_file: str
    tls_session_caching: bool
    tls_replication: bool
    tls_client_cert_file: str  # "": tls_cert_file
    tls_client_key_file: str
    tls_client_key_file_pass: str
    # general
    daemonize: bool  # always False
    supervised: str  # no, systemd, auto, upstart
    pidfile: str
    loglevel: str
    logfile: str  # "": standard output
    syslog_enabled: bool  # always False
    databases: int  # always 1
    hz: int
    shutdown_timeout: int  # seconds
    shutdown_on_sigterm: list[str]
    shutdown_on_sigint: list[str]
    # persistence
    dir: str  # absolute
    appendonly: bool  # always True
    appendfsync: str  # always, everysec, no
    save: list[SavePoint]  # (seconds, changes)
    checkpoint_size: int
    scrub_rate: int  # bytes per second; 0: off
    wal_size: int
    # streams
    stream_idmp_duration: int
    stream_idmp_maxsize: int
    stream_retention: list[str]  # see valuetypes.policies()
    stream_node_max_entries: int
    stream_node_max_bytes: int
    node_cache_size: int
    # history
    tier_url: str  # "": nowhere
    tier_after: str  # see valuetypes.tier_after()
    tier_interval: int  # seconds
    tier_timeout: int  # seconds
    tier_free: bool
    tier_grace: int  # seconds
    tier_cache: int  # bytes
    # limits
    proto_max_bulk_len: int
    proto_max_command_expansion: int
    client_query_buffer_limit: int
    client_output_buffer_limit: dict[str, Limits]  # keyed by class: normal, replica, pubsub
    maxmemory: int  # 0: none
    maxmemory_policy: str  # always noeviction
    # security
    requirepass: str  # "": none
    enable_debug_command: str  # no, yes, local
    rename_command: dict[str, str]  # old name in lower case -> new name; "" removes the command
    user: dict[str, str]  # name -> rules, as ACL LIST shows them; see ``aclfile.texts``
    aclfile: str  # "": none
    acllog_max_len: int
    # observation
    slowlog_log_slower_than: int  # microseconds; -1 never
    slowlog_max_len: int
    latency_tracking: bool
    latency_tracking_info_percentiles: list[str]  # numbers from 0 to 100
    latency_monitor_threshold: int  # ms; 0 off
    notify_keyspace_events: str  # letters, see ``storage.keyspace.events``; "": none
    tracking_table_max_keys: int  # 0: no limit
    metrics_port: int  # 0: none
    metrics_bind: list[str]  # as ``bind``
    metrics_keys: int
    metrics_key_pattern: str  # "": all streams
    # replication
    replicaof: list[str]  # host, port; []: a leader. Changed by REPLICAOF
    masterauth: str  # "": none
    masteruser: str
    replica_serve_stale_data: bool
    replica_read_only: bool  # always True
    repl_ping_replica_period: int  # seconds
    repl_timeout: int  # seconds
    repl_disable_tcp_nodelay: bool
    repl_backlog_size: int
    repl_backlog_ttl: int  # seconds; 0: forever
    replica_priority: int
    replica_accept_shorter: bool
    replica_announced: bool
    replica_announce_ip: str  # "": the address that the leader detects
    replica_announce_port: int  # 0: the port on which this server listens
    min_replicas_to_write: int  # 0: no replicas needed
    min_replicas_max_lag: int  # seconds; 0: no replicas needed
    replica_acks: int  # number of replicas, or ``valuetypes.INSYNC``; 0: replies do not wait
    # server groups
    group: str  # "": this server is in none
    coordinator: str
    group_member: str  # "": the name in the data directory
    group_lease: int  # ms
    min_in_sync: int  # including the leader
    in_sync_timeout: int  # ms
    # clusters
    cluster_enabled: bool
    cluster_name: str  # at the coordinator
    cluster_require_full_coverage: bool
    cluster_allow_reads_when_down: bool
    move_pause: int  # ms
    cluster_announce_ip: str  # "": replica_announce_ip, or the address at which others reach this server
    cluster_announce_hostname: str  # "": none
    cluster_preferred_endpoint_type: str  # ip or hostname
    cluster_announce_port: int  # 0: the port on which this server listens
    cluster_announce_tls_port: int  # 0: the port for TLS on which this server listens

    def __init__(self) -> None:
        self.file: str | None = None  # absolute path of the configuration file; None: none
        self.warnings: list[str] = []  # warnings of load(), one line each
        # called with a warning; at startup, this is the logger's method
        self.warn: Callable[[str], None] = self.warnings.append
        self.ignored: dict[str, str] = {}  # configured directives that are ignored: name -> value
        for directive in DIRECTIVES.values():
            text = directive.default
            words = directive.split(text) if text or directive.kind in ("string", "host", "events", "pattern") else []
            self._put(directive, {} if directive.kind in ("renames", "users") else directive.parse(words, {}))
        self.dir = os.path.abspath(self.dir)

    @property
    def save_points(self) -> list[SavePoint]:
        """Pairs (seconds, changes): a checkpoint starts if both numbers are reached since the last one."""
        return self.save

    def password(self) -> bytes:
        """Return the bytes of ``requirepass``; empty for no password."""
        return self.requirepass.encode("utf-8", "surrogateescape")

    # -- loading ---------------------------------------------------------------------------------------------
    @classmethod
    def load(cls, argv: Sequence[str], read_stdin: Callable[[], str] | None = None) -> Self:
        """Load ``[conf-file] [--name value ...] [-]``, the arguments of the program. Raises ConfigError.

        If the first or the last word is ``-``, ``read_stdin`` is called to read the text.
        """
        config = cls()
        args = list(argv)
        lines: list[ConfigLine] = []
        from_stdin = read_stdin is not None and "-" in args[:1] + args[-1:]
        if from_stdin:
            args.pop(0 if args[0] == "-" else -1)
        if args and not args[0].startswith("-"):
            path = args.pop(0)
            lines += conffile.read_file(path)
            config.file = os.path.abspath(path)
        if from_stdin and read_stdin is not None:
            lines += conffile.read_text(read_stdin(), "-")
        lines += conffile.read_flags(args, _may_be_empty)
        config.apply(lines)
        return config

    def apply(self, lines: Iterable[ConfigLine]) -> None:
        """Apply lines in order. Raises ConfigError for the first invalid one."""
        cleared: set[str] = set()
        given: set[str] = set()
        useless: dict[str, list[str]] = {}  # reason -> names
        for line in lines:
            name = line.words[0].lower()
            directive = DIRECTIVES.get(ALIASES.get(name, name))
            if directive is None:
                reason = reason_ignored(name)
                if reason is None:
                    raise ConfigError(_unknown(line), line)
                names = useless.setdefault(reason, [])
                if name not in names:
                    names.append(name)
                self.ignored[name] = " ".join(line.words[1:])
                continue
            words = line.words[1:]
            if not words and not _may_be_empty(name):
                raise ConfigError("wrong number of arguments", line)
            before: Value = getattr(self, directive.attr)
            if directive.kind == "save" and name not in cleared:
                cleared.add(name)
                before = []
            if not words and line.source and directive.kind == "save":
                # as in redis-server, the line adds nothing, whereas the flag clears the list
                self.take(directive, before)
                continue
            if directive.kind == "users" and not line.source and isinstance(before, dict):  # a flag overrides
                before = {name: text for name, text in before.items() if [name] != words[:1]}  # type: ignore[assignment]
            given.add(directive.name)
            try:
                self.take(directive, directive.parse(words, before))
            except ValueError as exc:
                raise ConfigError(str(exc), line) from None
        self._check("replica-acks" in given)
        for reason, names in useless.items():
            self.warnings.append(f"Ignored: {', '.join(names)} ({reason})")
        if not self.protected_mode and self._open() and not all(map(is_loopback, self.bind)):
            self.warnings.append(OPEN_TO_ALL)

    def _check(self, acks: bool) -> None:
        """Raise ConfigError if directives contradict each other. ``acks``: whether replica-acks is set."""
        self._check_group(acks)
        problem = problem_of(self.tier_url) if self.tier_url else ""
        if problem:
            raise ConfigError(f"tier-url {self.tier_url}: {problem}")
        self.check_tiering()
        self.check_metrics_keys()
        self.check_metrics_port(self._open())

    def check_tiering(self) -> None:
        """Raise ConfigError if ``tier-free`` contradicts other directives."""
        if self.tier_free and not self.tier_url:
            raise ConfigError("tier-free yes needs tier-url: set it to where the entries are copied")

    def _check_group(self, acks: bool) -> None:
        """Raise ConfigError if the directives of a server group contradict each other. ``acks``: whether replica-acks
        is set."""
        if self.group and not acks:
            self.replica_acks = INSYNC
        if bool(self.group) != bool(self.coordinator):
            raise ConfigError("group and coordinator must be set together: set both of them, or neither")
        if not self.group:
            if self.replica_acks == INSYNC:
                raise ConfigError(
                    "replica-acks insync needs a server group: set group and coordinator, or set a number of replicas"
                )
            return
        for name, value in (
            ("group", self.group), ("group-member", self.group_member), ("cluster-name", self.cluster_name or " "),
        ):  # fmt: skip
            if value and GROUP_NAME.fullmatch(value) is None:
                raise ConfigError(f"{name} must have 1 to 64 of the characters 0-9 A-Z a-z . _ : @ -")
        if self.replicaof:
            raise ConfigError(
                "replicaof can't be set in a server group, because the group elects its leader: remove it"
            )
        if self.replica_acks > 0:
            raise ConfigError("replica-acks must be insync or 0 in a server group")

    def check_metrics_keys(self) -> None:
        """Raise ConfigError if no stream can be selected for the metrics although a pattern selects some."""
        if self.metrics_key_pattern and not self.metrics_keys:
            raise ConfigError(
                "metrics-key-pattern has no effect while metrics-keys is 0: set metrics-keys to the maximum number of "
                "streams, or remove the pattern"
            )

    def check_metrics_port(self, no_password: bool) -> None:
        """Raise ConfigError if metrics-port or metrics-bind contradicts other directives. ``no_password``: whether
        clients need none."""
        if not self.metrics_port:
            return
        if not self.metrics_bind:
            raise ConfigError("metrics-bind is empty: set an address, or set metrics-port 0 to turn the metrics off")
        for name, port in (("port", self.port), ("tls-port", self.tls_port)):
            if self.metrics_port == port:
                raise ConfigError(f"metrics-port and {name} are both {port}: set metrics-port to another port")
        far = [address for address in self.metrics_bind if not is_loopback(address)]
        if far and self.protected_mode and no_password:
            raise ConfigError(
                f"metrics-bind {far[0]} is not a loopback address, and protected mode refuses other machines as long "
                "as no password is set: set metrics-bind to a loopback address, set a password with requirepass, or set"
                " protected-mode no"
            )

    def _open(self) -> bool:
        """Return whether clients need no password, according to these lines."""
        rules = self.user.get("default", "").split()
        return not {"on", "nopass"} - set(rules) if rules else not self.requirepass and not self.aclfile

    def take(self, directive: Directive, value: Value, by_client: bool = False) -> None:
        """Set a directive. A fixed one keeps its value, with a warning. Raises ValueError if it must be refused."""
        if directive.fixed and value != getattr(self, directive.attr):
            if directive.fixed == "refuse" or (by_client and directive.fixed == "no-set"):
                raise ValueError(directive.why)
            stays = directive.show(getattr(self, directive.attr))
            given = f"{directive.name} {directive.show(value)}"
            self.warn(f"{given}: {directive.why}; it remains {stays}" if stays else f"{given}: {directive.why}")
            return
        self._put(directive, value)

    def _put(self, directive: Directive, value: Value) -> None:
        if directive.name == "dir" and isinstance(value, str):
            value = os.path.abspath(value)
        setattr(self, directive.attr, value)


def _may_be_empty(name: str) -> bool:
    """Return whether the directive without a value means an empty list, as for ``save``."""
    directive = DIRECTIVES.get(ALIASES.get(name, name))
    return directive is not None and directive.kind in ("words", "hosts", "percentiles", "save", "policies")


def is_loopback(address: str) -> bool:
    """Return whether an address of ``bind`` is a loopback address."""
    address = address.removeprefix("-")
    return address.startswith("127.") or address in ("::1", "localhost")


def _unknown(line: ConfigLine) -> str:
    """Return the error text for a name that neither tidelog nor Redis knows."""
    text = "Bad directive or wrong number of arguments"
    word = line.words[0]
    name, equals, value = word.partition("=")
    if equals and name.lower() in DIRECTIVES:
        return f"{text}: write it as '{'' if line.source else '--'}{name} {value}'"
    near = conffile.nearest(word, [*DIRECTIVES, *IGNORED, *ALIASES, "include"])
    return f"{text}: unknown word '{word}'" + (f"; did you mean '{near}'?" if near else "")
