"""All directives, each declared once.

The configuration file, the command line, CONFIG GET, SET and REWRITE, ``--help <name>`` and docs/configuration.md
derive from ``DIRECTIVES``. Directives of Redis that have no effect in tidelog are in ``ignored``.

To add a directive, add a ``Directive`` below and an attribute of the same name (with underscores for dashes) to
``values.Values``, and run ``scripts/config_reference.py``. Tests check that the three agree.

The error texts for invalid values are those of Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from respserver.config import valuetypes
from respserver.config.conffile import parse_memory, parse_yes_no, quote, split_words
from respserver.config.valuetypes import INSYNC, LISTS, Limits, Value, parse_host
from storage.keyspace.events import parse_classes, show_classes

MB = 1024 * 1024
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


# The parsers of the kinds, except for those that need other properties of the directive.
_CUMULATIVE: dict[str, Callable[[list[str], Value], Value]] = {
    "save": valuetypes.parse_save, "limits": valuetypes.parse_limits, "renames": valuetypes.parse_rename,
    "users": valuetypes.parse_user,
}  # fmt: skip
_ONE_WORD: dict[str, Callable[[str], Value]] = {
    "yesno": parse_yes_no, "string": str, "host": lambda word: parse_host(word) if word else word,
    "pattern": valuetypes.parse_pattern, "span": valuetypes.parse_span,
    "events": lambda word: show_classes(parse_classes(word)), "acks": valuetypes.parse_acks,
}  # fmt: skip


class Directive(NamedTuple):
    """One directive: how words become its value, how the value is shown, and its documentation.

    ``kind`` is one of yesno, integer, memory, octal, enum, string, host, words, hosts, percentiles, save, limits,
    renames, users, leader, acks, pattern, policies, span. ``default`` is text, as in a file.

    ``fixed`` is not empty if tidelog supports only one value. It determines the effect of another value: ``"warn"``
    logs a warning and keeps the default; ``"no-set"`` does the same, but CONFIG SET fails, because clients would rely
    on the new value; ``"refuse"`` is an error everywhere, because ignoring the value would be dangerous. ``why`` is the
    reason in the warning or error.
    """

    name: str
    kind: str
    default: str
    doc: str
    mutable: bool = True  # CONFIG SET may change it
    low: int = 0
    high: int = MAX_LONG
    choices: tuple[str, ...] = ()
    fixed: str = ""
    why: str = ""
    hidden: bool = False  # not in CONFIG GET, as in Redis
    secret: bool = False  # hidden in the slow log and in MONITOR

    @property
    def attr(self) -> str:
        """The attribute of Config."""
        return self.name.replace("-", "_")

    def split(self, text: str) -> list[str]:
        """Split a value in one text (CONFIG SET, a quoted list) into words. Raises ValueError."""
        return split_words(text) if self.kind in LISTS else [text]

    def parse(self, words: list[str], before: Value) -> Value:
        """Parse ``words`` to a value. Cumulative kinds add to ``before``. Raises ValueError with Redis's text."""
        kind = self.kind
        if kind in LISTS and len(words) == 1:
            words = split_words(words[0]) or (words if kind == "leader" else [])
        if kind in _CUMULATIVE:
            return _CUMULATIVE[kind](words, before)
        if kind == "words":
            return self._chosen(words) if self.choices else words
        if kind == "hosts":
            return [word[: word.startswith("-")] + parse_host(word.removeprefix("-")) for word in words]
        if kind == "percentiles":
            return valuetypes.parse_percentiles(self.name, words)
        if kind == "policies":
            return valuetypes.parse_policies(words)
        if kind == "leader":
            return valuetypes.parse_leader(words)
        if len(words) != 1:
            raise ValueError("wrong number of arguments")
        if kind in _ONE_WORD:
            return _ONE_WORD[kind](words[0])
        return self._chosen(words)[0] if kind == "enum" else self._number(words[0])

    def show(self, value: Value) -> str:
        """Return the value as CONFIG GET shows it. As in Redis, words with blanks are not quoted."""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value == INSYNC and self.kind == "acks":
            return "insync"
        if isinstance(value, int):
            return f"{value:o}" if self.kind == "octal" else str(value)
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            return " ".join(f"{_shown_class(name)} {_shown_limits(limits)}" for name, limits in value.items())
        return " ".join(part if isinstance(part, str) else f"{part[0]} {part[1]}" for part in value)

    def lines(self, value: Value) -> list[str]:
        """Return the value as lines of a configuration file, which parse to the same value for any bytes."""
        if isinstance(value, dict):
            if self.kind == "renames":
                return [f"{self.name} {quote(old)} {quote(str(new))}" for old, new in value.items()]
            if self.kind == "users":
                rules = {name: " ".join(map(quote, str(text).split(" "))) for name, text in value.items()}
                return [f"{self.name} {quote(name)} {text}" for name, text in rules.items()]
            return [f"{self.name} {name} {_shown_limits(limits)}" for name, limits in value.items()]
        if self.kind == "leader" and not value:
            return [f"{self.name} no one"]
        if isinstance(value, list):
            words = [quote(word) if isinstance(word, str) else f"{word[0]} {word[1]}" for word in value]
            text = " ".join(words)
            if not words or (len(words) == 1 and self.kind != "save"):
                text = quote(text)  # parse() splits a single word again
            return [f"{self.name} {text}"]
        return [f"{self.name} {quote(self.show(value))}"]

    def takes(self) -> str:
        """Describe the allowed values."""
        kind = self.kind
        if kind == "enum":
            return " or ".join(f"`{c}`" for c in self.choices)
        if kind in ("integer", "memory"):
            name = "a number" if kind == "integer" else "bytes (`64mb`)"
            if self.high < MAX_INT or self.low != 0:
                return f"{name}, {self.low} to {self.high}" if self.high < MAX_INT else f"{name}, {self.low} or more"
            return name
        return {
            "yesno": "`yes` or `no`",
            "acks": "a number, or `insync`",
            "octal": "a file mode in octal",
            "string": "text",
            "pattern": "a glob pattern",
            "span": "seconds, or bytes with a unit (`64mb`)",
            "host": "a host name or an address",
            "words": "words",
            "percentiles": "numbers from 0 to 100",
            "events": "letters of `KEg$lshzxetdmnocA`",
            "hosts": "host names or addresses",
            "save": "pairs of seconds and changes, or `\"\"`",
            "limits": "class, hard bytes, soft bytes, soft seconds; may repeat",
            "leader": "host and port, or `no one`",
            "policies": "pattern, RETAIN, limits; may repeat",
            "users": "a name and rules; may repeat",
            "renames": "a name and its new name, or `\"\"`; may repeat",
        }[kind]

    def _chosen(self, words: list[str]) -> list[str]:
        words = [word.lower() for word in words]
        if not words or not set(words) <= set(self.choices):
            raise ValueError(f"argument(s) must be one of the following: {', '.join(self.choices)}")
        return words

    def _number(self, word: str) -> int:
        if self.kind == "memory":
            number = parse_memory(word)
        else:
            try:
                number = int(word, 8 if self.kind == "octal" else 10)
            except ValueError:
                number = MAX_LONG + 1
            if self.kind == "octal" and not self.low <= number <= self.high:
                raise ValueError(f"argument must be between {self.low:o} and {self.high:o} inclusive")
            if not -MAX_LONG - 1 <= number <= MAX_LONG or word != word.strip() or "_" in word:
                raise ValueError("argument couldn't be parsed into an integer")
        if not self.low <= number <= self.high:
            raise ValueError(f"argument must be between {self.low} and {self.high} inclusive")
        return number


def _shown_class(name: str) -> str:
    return "slave" if name == "replica" else name  # the name that Redis still prints


def _shown_limits(limits: Limits | str) -> str:
    return limits if isinstance(limits, str) else " ".join(map(str, limits))


# fmt: off  -- to be read as a table
_NETWORK = (
    Directive(
        "bind", "hosts", "127.0.0.1 -::1",
        "Addresses to listen on; `*`: all IPv4 addresses, `::*`: all IPv6 addresses. An address with a leading dash "
        "is skipped if the machine does not have it. The default is the loopback interface only.", mutable=False,
    ),
    Directive("port", "integer", "6379", "TCP port; 0: none.", mutable=False, high=65535),
    Directive(
        "protected-mode", "yesno", "yes",
        "As long as no password is set, refuse clients from other machines, even if `bind` lets them connect.",
    ),
    Directive("tcp-backlog", "integer", "511",
              "The number of connections that the system queues until the server accepts them.",
              mutable=False, high=MAX_INT),
    Directive("unixsocket", "string", "", "Path of an additional Unix socket to listen on; empty: none.",
              mutable=False),
    Directive("unixsocketperm", "octal", "0", "File mode of the Unix socket; 0: determined by the umask.",
              mutable=False, high=0o777),
    Directive("timeout", "integer", "0",
              "Seconds after which an idle client is closed; blocked and subscribed clients are not closed; 0: never.",
              high=MAX_INT),
    Directive("tcp-keepalive", "integer", "300", "Seconds between TCP keepalive probes; 0: no probes.", high=MAX_INT),
    Directive("maxclients", "integer", "10000",
              "Maximum number of connected clients. Lowered at startup if the system allows fewer open files.",
              low=1, high=2**32 - 1),
)

_TLS = (
    Directive("tls-port", "integer", "0", "TCP port for TLS; 0: none. With `port 0` the server accepts TLS only.",
              mutable=False, high=65535),
    Directive("tls-cert-file", "string", "",
              "The server's certificate (PEM), with its chain. To renew it, replace the file and CONFIG SET the same "
              "path."),
    Directive("tls-key-file", "string", "", "The private key of `tls-cert-file` (PEM)."),
    Directive("tls-key-file-pass", "string", "", "The password of `tls-key-file`, if it is encrypted.", secret=True),
    Directive("tls-ca-cert-file", "string", "",
              "The certificates of the authorities that sign clients' certificates (PEM).", mutable=False),
    Directive("tls-ca-cert-dir", "string", "",
              "The same, as a directory of files with hashed names (`openssl rehash`).", mutable=False),
    Directive("tls-auth-clients", "enum", "yes",
              "Whether clients need a certificate; with `optional`, a certificate is verified if the client sends one.",
              choices=("no", "yes", "optional"), mutable=False),
    Directive("tls-protocols", "words", "",
              "Allowed versions, for example `TLSv1.2 TLSv1.3`, which is the default.", mutable=False),
    Directive("tls-ciphers", "string", "",
              "Ciphers for TLS 1.2 in OpenSSL's notation; empty: OpenSSL's default.", mutable=False),
    Directive("tls-ciphersuites", "string", "",
              "Ciphersuites for TLS 1.3. Needs Python 3.15 or newer; with an older one it is an error.", mutable=False),
    Directive("tls-prefer-server-ciphers", "yesno", "no",
              "Choose the cipher by the server's order of preference instead of the client's.", mutable=False),
    Directive("tls-dh-params-file", "string", "", "Diffie-Hellman parameters (PEM) for TLS 1.2.", mutable=False),
    Directive("tls-session-caching", "yesno", "yes", "Let clients resume TLS sessions.", mutable=False),
    Directive("tls-replication", "yesno", "no",
              "As a replica, connect to the leader with TLS; the port in `replicaof` is then the leader's `tls-port`."),
    Directive("tls-client-cert-file", "string", "",
              "The certificate with which a replica connects to its leader (PEM); empty: that of `tls-cert-file`."),
    Directive("tls-client-key-file", "string", "", "The private key of `tls-client-cert-file` (PEM)."),
    Directive("tls-client-key-file-pass", "string", "",
              "The password of `tls-client-key-file`, if it is encrypted.", secret=True),
)

_GENERAL = (
    Directive("daemonize", "yesno", "no", "tidelog-server stays in the foreground.", mutable=False, fixed="warn",
              why="tidelog-server stays in the foreground: use systemd, a container or nohup"),
    Directive("supervised", "enum", "no",
              "With `systemd` or `auto`, systemd (`Type=notify`) is notified when the server is ready, when it stops, "
              "and, for `WatchdogSec`, while it runs.",
              mutable=False, choices=("no", "systemd", "auto", "upstart")),
    Directive("pidfile", "string", "",
              "The file for the process ID. Written when the server is ready, removed at shutdown; empty: none.",
              mutable=False),
    Directive("loglevel", "enum", "notice", "The lowest level that is logged.",
              choices=("debug", "verbose", "notice", "warning", "nothing")),
    Directive("logfile", "string", "",
              "The log file; empty: standard output. It is opened for each line, so it can be renamed at any time.",
              mutable=False),
    Directive("syslog-enabled", "yesno", "no", "Logs go to standard output or to a file.", mutable=False,
              fixed="warn", why="logs go to standard output or to logfile"),
    Directive("databases", "integer", "1", "There is one database, number 0.", mutable=False, low=1, high=MAX_INT,
              fixed="warn", why="there is one database, number 0"),
    Directive("hz", "integer", "10",
              "How many times per second the server checks for idle clients, expired keys and due save points.",
              low=1, high=500),
    Directive("shutdown-timeout", "integer", "10",
              "Seconds that a leader waits during shutdown until its replicas have the whole log; 0: it "
              "does not wait.", high=MAX_INT),
    Directive("shutdown-on-sigterm", "words", "default",
              "With `default` and `save` the server writes a checkpoint at shutdown, with `nosave` it does not. "
              "No data is lost in either case: the next start reads the journal. With `now` it does not wait for "
              "replicas (`shutdown-timeout`); `force` has no effect.",
              choices=("default", "save", "nosave", "now", "force")),
    Directive("shutdown-on-sigint", "words", "default", "The same for SIGINT (Ctrl-C).",
              choices=("default", "save", "nosave", "now", "force")),
)

_PERSISTENCE = (
    Directive("dir", "string", "./data",
              "The data directory. Created if it is missing; only one server at a time can use it.",
              mutable=False),
    Directive("appendonly", "yesno", "yes", "Every write is logged; this can't be switched off.", fixed="warn",
              why="every write is on disk anyway"),
    Directive("appendfsync", "enum", "always",
              "When writes are synced to disk. `always`: before any client sees a reply; `everysec`: once per second; "
              "`no`: when the operating system decides. The last two lose nothing if the process crashes, but can lose "
              "writes if the machine crashes.",
              choices=("everysec", "always", "no")),
    Directive("save", "save", "3600 1 300 100 60 10000",
              "Save points, as pairs of seconds and changes: a checkpoint is written if both are reached. Repeated "
              'lines add up; `save ""` clears the list. They limit memory and start-up time; durability does not '
              "depend on them."),
    Directive("checkpoint-size", "memory", "64mb",
              "A checkpoint is also written when the journal has grown by this size plus 2 KB for each changed stream, "
              "and at the latest when it has grown by four times this size.",
              low=MB),
    Directive("scrub-rate", "memory", "8mb",
              "Bytes per second that the scrub reads and verifies of the store. A pass begins daily. If a pass would "
              "take more than six days at this rate, the rate is raised. 0 turns the scrub and repairs off."),
    Directive("wal-size", "memory", "16mb",
              "Size of the WAL, a ring file to which each write is logged before it is moved to the journal. Writers "
              "wait when it is full. A new size takes effect at the next start.",
              mutable=False, low=MB, high=64 * 1024 * MB),
)

_STREAMS = (
    Directive("stream-node-max-entries", "integer", "512",
              "The number of entries at which a macro node is sealed; values from 100 to 1000 are reasonable.",
              low=1, high=65536),
    Directive("stream-node-max-bytes", "memory", "64kb",
              "The uncompressed size at which a macro node is sealed. Also the size of the chunks of streamed ranges.",
              low=1024, high=1024 * MB),
    Directive("stream-idmp-duration", "integer", "100",
              "Seconds for which XADD remembers the IDs of IDMP and IDMPAUTO, in streams without an XCFGSET.",
              low=1, high=86400),
    Directive("stream-idmp-maxsize", "integer", "100",
              "Maximum number of these IDs for each producer, in streams without an XCFGSET.", low=1, high=10000),
    Directive("stream-retention", "policies", "",
              "Default retention policies of new streams: a pattern of keys, RETAIN, and the limits as for TCFG; may "
              "repeat. Example: `log:* RETAIN COUNT 100000 job:* RETAIN AGE 604800000 GROUPS`. The first pattern that "
              "matches counts. Streams that exist keep their policies."),
    Directive("node-cache-size", "memory", "32mb", "Memory for decoded macro nodes, shared by all streams."),
)

_HISTORY = (
    Directive("tier-url", "string", "",
              "Where the leader copies sealed nodes as history objects: an absolute path, `s3://bucket/prefix`, "
              "`gs://`, or `abfs://`; empty: nowhere. All members of a server group need the same value. See "
              "[history.md](history.md).", mutable=False),
    Directive("tier-after", "span", "86400",
              "How much recent history of each stream stays local: an age in seconds, by the IDs of the entries "
              "(`3600`), or a size in the store, which needs a unit (`1gb`). What exceeds it is copied; 0: each node "
              "as soon as it is sealed. The active node is never copied. `TCFG key TIER` sets it for a stream."),
    Directive("tier-interval", "integer", "3600",
              "Seconds between two passes. Each pass copies everything that is due, in objects of up to 64 MB; 0: the "
              "next pass follows immediately.", high=MAX_INT),
    Directive("tier-timeout", "integer", "60",
              "Seconds after which a call to the object store fails. A helper process that is silent for 15 seconds "
              "longer is killed.", low=1, high=3600),
    Directive("tier-free", "yesno", "no",
              "Whether entries that the leader has copied leave the store of this server. They are then only in the "
              "object store, and reads fetch them from there. See [history.md](history.md) before you set it."),
    Directive("tier-grace", "integer", "86400",
              "Seconds after which an object without remaining entries is deleted. A reader that has read a manifest "
              "earlier can use it for so long; 0: the next pass deletes it.", high=MAX_INT),
    Directive("tier-cache", "memory", "1gb",
              "Disk space for entries that were read back from the object store, in `DIR/tier-cache`.", low=64 * MB),
)

_LIMITS = (
    Directive("proto-max-bulk-len", "memory", "512mb", "Maximum size of a single argument.", low=MB),
    Directive("proto-max-command-expansion", "memory", "64mb",
              "Maximum number of bytes by which the entries of one TMAPPEND or TSTAGE may exceed the size of the "
              "command: fields are sent once, but stored with every entry.", low=MB),
    Directive("client-query-buffer-limit", "memory", "1gb",
              "Maximum size of the waiting commands of one client.",
              low=MB),
    Directive("client-output-buffer-limit", "limits", "normal 0 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60",
              "A client that reads too slowly is closed when its waiting replies exceed the hard limit, or exceed the "
              "soft limit for this many seconds; 0: no limit. The reply to EXEC counts while it is produced. The class "
              "`replica` has no effect: a slow replica is served from the journal, and nothing is buffered for "
              "it in memory."),
    Directive("maxmemory", "memory", "0",
              "If more memory than this is used (`used_memory` in INFO), commands that add data fail with `-OOM`; 0: "
              "no limit. Nothing is evicted. The program itself is not counted; it needs about 100 MB in addition."),
    Directive("maxmemory-policy", "enum", "noeviction", "Always `noeviction`.", fixed="no-set",
              why="tidelog evicts nothing to free memory: writes fail with -OOM instead",
              choices=("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru", "allkeys-lfu",
                       "allkeys-random", "noeviction")),
)

_SECURITY = (
    Directive("requirepass", "string", "",
              "The password of the user `default`, for clients that send only a password (AUTH, HELLO); empty: "
              "none.", secret=True),
    Directive("enable-debug-command", "enum", "no",
              "Whether DEBUG is allowed: for all clients (`yes`), or for clients on the loopback interface (`local`).",
              mutable=False, choices=("no", "yes", "local")),
    Directive("rename-command", "renames", "",
              "`rename-command FLUSHALL \"\"` removes a command; a non-empty name renames it.",
              mutable=False, hidden=True),
    Directive("user", "users", "",
              "A user and its rules: `user app on >secret ~jobs:* +@stream`, see [acl.md](acl.md). CONFIG REWRITE "
              "writes these lines, with hashes for passwords.", mutable=False, hidden=True, secret=True),
    Directive("aclfile", "string", "",
              "A file with users, for ACL LOAD and ACL SAVE; empty: none. Excludes `user` lines.", mutable=False),
    Directive("acllog-max-len", "integer", "128", "The number of entries that ACL LOG keeps."),
)

_OBSERVATION = (
    Directive("slowlog-log-slower-than", "integer", "10000",
              "Commands that take at least this many microseconds enter the slow log; 0: all, -1: none.", low=-1),
    Directive("slowlog-max-len", "integer", "128", "The number of entries that the slow log keeps."),
    Directive("latency-tracking", "yesno", "no",
              "Record a histogram of the durations of each command, for INFO latencystats."),
    Directive("latency-tracking-info-percentiles", "percentiles", "50 99 99.9",
              "The percentiles of these durations in INFO latencystats, each from 0 to 100."),
    Directive("latency-monitor-threshold", "integer", "0",
              "Events that take at least this many milliseconds are recorded for LATENCY; 0: none."),
    Directive("notify-keyspace-events", "events", "",
              "Published keyspace events: `K` and `E` select the channels, the other letters the classes, and "
              "`A` stands for `g$lshzxetd`. Empty: none."),
    Directive("tracking-table-max-keys", "integer", "1000000",
              "Maximum number of keys that the server remembers for CLIENT TRACKING; beyond it, clients are notified "
              "to drop the oldest. 0: no limit."),
    Directive("metrics-port", "integer", "0",
              "TCP port on which `GET /metrics` returns metrics for Prometheus; 0: none. See "
              "[monitoring.md](monitoring.md).", high=65535),
    Directive("metrics-bind", "hosts", "127.0.0.1 -::1",
              "Addresses of `metrics-port`, in the notation of `bind`. The metrics have no password: clients can "
              "read the names of streams and groups. An address that is not loopback is refused as long as "
              "`protected-mode` refuses clients from other machines."),
    Directive("metrics-keys", "integer", "100",
              "Number of streams whose metrics, and those of their groups, are exported: the largest ones.",
              high=10_000),
    Directive("metrics-key-pattern", "pattern", "",
              "Only streams whose keys match this pattern are exported, at most `metrics-keys` of them; empty: all "
              "streams."),
)

_REPLICATION = (
    Directive("replicaof", "leader", "",
              "Host and port of the leader that this server replicates; `no one`: this server is a leader. The command "
              "REPLICAOF changes it at run time, and CONFIG REWRITE saves the change.", mutable=False),
    Directive("masterauth", "string", "", "The leader's password.", secret=True),
    Directive("masteruser", "string", "", "The user for the leader's password; empty: `default`.", secret=True),
    Directive("replica-serve-stale-data", "yesno", "yes",
              "Whether a replica still answers reads while it has no link to its leader; with `no` they fail with "
              "`-MASTERDOWN`."),
    Directive("replica-read-only", "yesno", "yes", "A replica accepts no writes of its own.", fixed="refuse",
              why="a replica's log is identical to its leader's, so it can't accept writes of its own"),
    Directive("repl-ping-replica-period", "integer", "10",
              "Seconds of silence after which a leader sends a keepalive.", low=1, high=MAX_INT),
    Directive("repl-timeout", "integer", "60",
              "Seconds without a message after which either side closes the link. Must be more than "
              "`repl-ping-replica-period`.",
              low=1, high=MAX_INT),
    Directive("repl-disable-tcp-nodelay", "yesno", "no",
              "Let the system combine small packets to replicas: less traffic, more delay."),
    Directive("repl-backlog-size", "memory", "256mb",
              "Size of the journal that a leader retains on disk for replicas and continuous backups that are not "
              "connected. One that lacks more than that needs a full copy.", low=1),
    Directive("repl-backlog-ttl", "integer", "3600",
              "Seconds after the last replica or continuous backup has disconnected until this part of the journal is "
              "deleted; 0: never."),
    Directive("replica-priority", "integer", "100",
              "Sentinel prefers the replica with the lowest number as the new leader; 0: never choose this "
              "one.", high=MAX_INT),
    Directive("replica-accept-shorter", "yesno", "no",
              "Whether a replica takes a full copy from a leader whose history is unrelated and shorter than that of "
              "the replica's data. Otherwise it refuses the copy, which would delete the data, until `REPLICAOF host "
              "port FORCE`."),
    Directive("replica-announced", "yesno", "yes", "Whether Sentinel tells clients about this replica."),
    Directive("replica-announce-ip", "host", "",
              "The address at which others reach this replica; empty: the one that its leader detects."),
    Directive("replica-announce-port", "integer", "0",
              "The port at which others reach this replica; 0: the port on which it listens.", high=65535),
    Directive("min-replicas-to-write", "integer", "0",
              "With fewer good replicas than this a leader refuses writes with `-NOREPLICAS`; 0: no replicas needed.",
              high=MAX_INT),
    Directive("min-replicas-max-lag", "integer", "10",
              "A replica is good if it has sent a message within this many seconds; 0: no replicas needed.",
              high=MAX_INT),
    Directive("replica-acks", "acks", "0",
              "A reply is released when this many replicas have on disk all data that it can show, regardless of "
              "`appendfsync`. With fewer connected replicas, writes fail with `-NOREPLICAS` before they run. 0: "
              "replies do not wait for replicas. See [replication.md](replication.md). With `insync`, the default in a "
              "server group, every member of the in-sync set must have the data. See [groups.md](groups.md)."),
)

_GROUPS = (
    Directive("group", "string", "",
              "The name of the server group that this server belongs to; empty: no group. The members share one log "
              "and elect their leader with the `coordinator`. See [groups.md](groups.md).", mutable=False),
    Directive("coordinator", "string", "",
              "The coordinator of the group: `file:///absolute/path` for members on one machine, or "
              "`etcd://host:2379,host:2379,host:2379`. All members of a group use the same coordinator.", mutable=False,
              secret=True),
    Directive("group-member", "string", "",
              "The name of this member; empty: the name that is saved in the data directory. The first start saves "
              "`host:port` there.", mutable=False),
    Directive("group-lease", "integer", "5000",
              "The duration of the leader's lease in milliseconds. The leader releases no reply without a valid lease. "
              "A failed leader is replaced after about this time, and with `etcd:` up to two seconds later. With "
              "`file:`, a leader whose process ends is replaced immediately.", mutable=False, low=100, high=600_000),
    Directive("min-in-sync", "integer", "2",
              "While the in-sync set has fewer members than this, including the leader, writes fail with "
              "`-NOREPLICAS` before they run. The largest value of all members counts.", low=1, high=1000),
    Directive("in-sync-timeout", "integer", "5000",
              "The leader removes a member from the in-sync set if the member acknowledges nothing for this time in "
              "milliseconds while replies are withheld.", low=100, high=MAX_INT),
)

_OTHERS = (
    Directive("cluster-enabled", "yesno", "no",
              "Serve cluster clients: the groups share the slots, or one leader has all of them. Other servers send "
              "clients to the leader with `-MOVED`, and the keys of a call must have the same slot.", mutable=False),
    Directive("cluster-name", "string", "tide",
              "The name of the cluster at the coordinator. All groups with the same name and coordinator share the "
              "slots. See [clusters.md](clusters.md).", mutable=False),
    Directive("cluster-require-full-coverage", "yesno", "yes",
              "Refuse calls with keys with `-CLUSTERDOWN` while any slot belongs to no group. `no`: only calls for "
              "these slots are refused."),
    Directive("cluster-allow-reads-when-down", "yesno", "no",
              "Serve reads while `cluster-require-full-coverage` stops the service."),
    Directive("move-pause", "integer", "200",
              "The longest time in milliseconds for which clients wait while slots leave this group. If the slots have "
              "not left by then, the group serves them again, or refuses their calls until it knows the outcome.",
              low=1, high=600_000),
    Directive("cluster-announce-ip", "host", "",
              "The address at which cluster clients reach this server; empty: `replica-announce-ip`, or the address at "
              "which this client or the leader reaches it."),
    Directive("cluster-announce-hostname", "host", "",
              "A host name of this server, which cluster clients receive in addition to its address; empty: none."),
    Directive("cluster-preferred-endpoint-type", "enum", "ip",
              "Whether clients connect to the address or to the host name of a server. A server without a host name is "
              "listed with its address.", choices=("ip", "hostname")),
    Directive("cluster-announce-port", "integer", "0",
              "The port at which cluster clients reach this server; 0: the port on which it listens.", high=65535),
    Directive("cluster-announce-tls-port", "integer", "0",
              "The same for clients that use TLS.", high=65535),
)

# fmt: on
SECTIONS: tuple[tuple[str, tuple[Directive, ...]], ...] = (
    ("Network", _NETWORK),
    ("TLS", _TLS),
    ("General", _GENERAL),
    ("Persistence", _PERSISTENCE),
    ("Streams", _STREAMS),
    ("History", _HISTORY),
    ("Limits", _LIMITS),
    ("Security", _SECURITY),
    ("Observation", _OBSERVATION),
    ("Replication", _REPLICATION),
    ("Server groups", _GROUPS),
    ("More than one server", _OTHERS),
)
DIRECTIVES: dict[str, Directive] = {directive.name: directive for _, part in SECTIONS for directive in part}
ALIASES: dict[str, str] = {  # alternative names in Redis
    "slaveof": "replicaof",
    "slave-serve-stale-data": "replica-serve-stale-data",
    "slave-read-only": "replica-read-only",
    "repl-ping-slave-period": "repl-ping-replica-period",
    "slave-priority": "replica-priority",
    "slave-announce-ip": "replica-announce-ip",
    "slave-announce-port": "replica-announce-port",
    "min-slaves-to-write": "min-replicas-to-write",
    "min-slaves-max-lag": "min-replicas-max-lag",
}
