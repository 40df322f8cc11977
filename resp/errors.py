"""Every error that a client can see, and the four families of errors.

Rule 1: errors are raised, never returned.
Rule 2: each text is defined once, in this module.
Rule 3: errors that Redis has, too, have Redis's texts and codes.

There are four families, each caught in one place:

==================  ==========================================  ==================================
family              cause                                       caught by
==================  ==========================================  ==================================
``ProtocolError``   the peer broke the wire protocol            the connection: replies, then closes
``CommandError``    the caller sent an invalid command          the dispatcher: replies
``CorruptError``    a file on disk is damaged or foreign        the program: logs, exits
all others          a bug in tidelog                            the dispatcher: logs, replies
==================  ==========================================  ==================================
"""

from __future__ import annotations

from collections.abc import Sequence


class ProtocolError(Exception):
    """The peer sent bytes that are not a request. The text follows ``-ERR Protocol error: `` in the reply."""


class QueryBufferError(ProtocolError):
    """Raised if a command is longer than ``client-query-buffer-limit``."""

    def __init__(self) -> None:
        super().__init__("query buffer limit exceeded")


class CommandError(Exception):
    """A command that can't be executed. ``text`` starts with the error code, without the leading dash."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class CorruptError(Exception):
    """A damaged or foreign file in the data directory. The text names the file and the remedy."""


class DamagedNodeError(CorruptError):
    """A damaged node of a stream: ``count`` entries from the ordinal ``first_ord`` and the ID ``first_id`` on."""

    def __init__(self, sid: int, first_ord: int, first_id: int, count: int, why: str) -> None:
        self.sid, self.first_ord, self.first_id, self.count, self.why = sid, first_ord, first_id, count, why
        super().__init__(
            f"the store is damaged at stream {sid}, entries {first_ord} to {first_ord + count - 1}: {why}."
            " Restore the data directory from a backup or a replica."
        )

    def of_key(self, key: bytes) -> str:
        """Return the text with the key, and the ID of the first damaged entry."""
        first = f"{self.first_id >> 64}.{self.first_id & (1 << 64) - 1}"
        return (
            f"the store is damaged at stream {self.sid} (key '{show(key)}'), entries {self.first_ord} to"
            f" {self.first_ord + self.count - 1} (IDs from {first}): {self.why}."
            " Restore the data directory from a backup or a replica."
        )


class AbsentNodeError(DamagedNodeError):
    """A node whose entries are only in a history object, and not in the disk cache. A retry can succeed.

    ``raw``: the reference in the store (``storage.nodes.reference``). ``last_id``: of its last entry. ``failed``: why
    the last attempt to read the object failed, and the remedy; "" if there was none lately.
    """

    def __init__(
        self, sid: int, first_ord: int, first_id: int, count: int, last_id: int, raw: bytes, place: str, failed: str
    ) -> None:
        super().__init__(sid, first_ord, first_id, count, place)
        self.last_id, self.raw, self.failed = last_id, raw, failed
        self.args = (self._text(""),)

    def of_key(self, key: bytes) -> str:
        return self._text(f" (key '{show(key)}')")

    def _text(self, key: str) -> str:
        mask = (1 << 64) - 1
        first, last = (f"{one >> 64}.{one & mask}" for one in (self.first_id, self.last_id))
        what = (
            f"the entries {first} to {last} of stream {self.sid}{key} are only in the object store ({self.why})"
        )
        if self.failed:
            return f"{what}, which can't be read: {self.failed}."
        return f"{what}, and are being read: repeat the command."


REMEDY = "restore the directory from a backup, or from a replica"  # at the end of most texts of CorruptError


# -- texts without a variable part ---------------------------------------------------------------------------
SYNTAX = "ERR syntax error"
NOT_INTEGER = "ERR value is not an integer or out of range"
NOT_INT = "ERR value is out of range, value must between -2147483648 and 2147483647"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
NO_SUCH_KEY = "ERR no such key"
ID_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"
NEGATIVE_TIMEOUT = "ERR timeout is negative"
LONG_TIMEOUT = "ERR timeout is out of range"
BAD_TIMEOUT = "ERR timeout is not an integer or out of range"
BUSY_GROUP = "BUSYGROUP Consumer Group name already exists"
XGROUP_NEEDS_KEY = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option "
    "to create an empty stream automatically."
)
BAD_ENTRIES_READ = "ERR value for ENTRIESREAD must be positive or -1"
MISSING_GROUP = "ERR Missing GROUP option for XREADGROUP"
BAD_MIN_IDLE = "ERR min-idle-time is not an integer or out of range"
NEGATIVE_MIN_IDLE = "ERR min-idle-time must be a positive integer"
BAD_CLAIM_COUNT = "ERR COUNT must be > 0"
BAD_NACK_MODE = "ERR mode must be SILENT, FAIL, or FATAL"
NACK_NEEDS_IDS = "ERR syntax error, expected IDS keyword"
BAD_NACK_NUMIDS = "ERR numids must be a positive integer"
NACK_NUMIDS_MISMATCH = "ERR number of IDs doesn't match numids"
BAD_RETRYCOUNT = "ERR Invalid RETRYCOUNT value, must be >= 0"
RETRY_NEEDS_GROUP = "ERR RETRY requires GROUP"
NEEDS_RETRY = "ERR MAXDELIVERIES and DEADLETTER require RETRY"
BAD_RETRY = "ERR retry-ms must be at least 1"
BAD_MAXBYTES = "ERR MAXBYTES must be a positive integer"
BAD_MAXDELIVERIES = "ERR MAXDELIVERIES must be between 1 and 4294967295"
BAD_DEADLETTER = "ERR DEADLETTER must name a key other than the stream's own"
EMPTY_GROUP = "ERR the group's name must not be empty"
BAD_FIELDS = "ERR the number of FIELDS must be positive and match the fields given"
NOT_POSITIVE = "ERR value is out of range, must be positive"
TOO_MUCH_AT_ONCE = "ERR the entries of one command may take 512 MiB together"
UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
DEMOTED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"

# X commands
ID_NOT_ABOVE = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
IDMP_WITH_ID = "ERR IDMP/IDMPAUTO can be used only with auto-generated IDs"
TWO_PRODUCERS = "ERR IDMP/IDMPAUTO specified multiple times"
NO_IDEMPOTENT_ID = "ERR IDMP requires a non-empty idempotent ID"
NO_PARAMETER = "ERR At least one parameter must be specified"
BAD_NUMIDS = "ERR Number of IDs must be a positive integer"
NUMIDS = "ERR The `numids` parameter must match the number of arguments"
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"
BAD_RANGE_START = "ERR invalid start ID for the interval"
BAD_RANGE_END = "ERR invalid end ID for the interval"
BAD_MAXLEN = "ERR The MAXLEN argument must be >= 0."
BAD_LIMIT = "ERR The LIMIT argument must be >= 0."
TWO_STRATEGIES = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
LIMIT_WITHOUT_STRATEGY = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
LIMIT_OF_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option"
NO_STRATEGY = "ERR syntax error, XTRIM must be called with a trimming strategy"
GROUP_OF_XREAD = "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead."
BAD_MAXCOUNT = "ERR MAXCOUNT must be a positive integer"
BAD_MAXSIZE = "ERR MAXSIZE must be a positive integer"
MAXCOUNT_BELOW_COUNT = "ERR MAXCOUNT must be greater than or equal to COUNT"
NOACK_OF_XREAD = "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead."
CLAIM_OF_XREAD = "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead."
NEW_OF_XREAD = (
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
)
NEGATIVE_ADDED = "ERR entries_added must be positive"
ADDED_BELOW_LENGTH = "ERR The entries_added specified in XSETID is smaller than the target stream length"
SETID_BELOW_TOP = "ERR The ID specified in XSETID is smaller than the target stream top item"
SETID_BELOW_DELETED = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
SETID_BELOW_GIVEN = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"

# connections
NOAUTH = "NOAUTH Authentication required."
BAD_CREDENTIALS = "WRONGPASS invalid username-password pair or user is disabled."
AUTH_HAS_TO_WAIT = "ERR after failed logins from this address AUTH and HELLO AUTH have to wait: not inside MULTI"
KEY_DENIED = "NOPERM No permissions to access a key"
CHANNEL_DENIED = "NOPERM No permissions to access a channel"
NO_PROTO = "NOPROTO unsupported protocol version"
BAD_PROTOCOL_VERSION = "ERR Protocol version is not an integer or out of range"
NO_SUCH_DATABASE = "ERR DB index is out of range"
NO_SUCH_CLIENT = "ERR No such client"
BAD_CLIENT_ID = "ERR Invalid client ID"
CLIENT_ID_TOO_SMALL = "ERR client-id should be greater than 0"
BAD_MAXAGE = "ERR maxage is not an integer or out of range"
MAXAGE_TOO_SMALL = "ERR maxage should be greater than 0"
BAD_UNBLOCK_REASON = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"
BAD_PAUSE_MODE = "ERR CLIENT PAUSE mode must be WRITE or ALL"
ONE_REDIRECTION = "ERR A client can only redirect to a single other client"
NO_REDIRECTION = "ERR The client ID you want redirect to does not exist"
PREFIX_NEEDS_BCAST = "ERR PREFIX option requires BCAST mode to be enabled"
BCAST_STAYS = (
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a "
    "different mode."
)
BCAST_AND_OPT = "ERR OPTIN and OPTOUT are not compatible with BCAST"
OPTIN_AND_OPTOUT = "ERR You can't specify both OPTIN mode and OPTOUT mode"
OPT_STAYS = (
    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a "
    "different mode."
)
NOT_CACHING = (
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
)
NOT_OPTIN = "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
NOT_OPTOUT = "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
AUTH_WITHOUT_NEED = (
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
HELLO_NEEDS_AUTH = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> "
    "option can be used to authenticate the client and select the RESP protocol version at the same time"
)
# users
DEFAULT_USER_STAYS = "ERR The 'default' user cannot be removed"
BAD_GENPASS = (
    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096"
)
NO_ACL_FILE = (
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER "
    "command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store "
    "users in the Redis configuration."
)
ACL_NOT_SAVED = (
    "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
)
# transactions
EXEC_ABORT = "EXECABORT Transaction discarded because of previous errors."
MULTI_NESTED = "ERR MULTI calls can not be nested"
EXEC_WITHOUT_MULTI = "ERR EXEC without MULTI"
DISCARD_WITHOUT_MULTI = "ERR DISCARD without MULTI"
WATCH_IN_MULTI = "ERR WATCH inside MULTI is not allowed"
# the server
NO_MEMORY = "OOM the system gives the server no more memory for this command"
OOM = "OOM command not allowed when used memory > 'maxmemory'."
READONLY = "READONLY You can't write against a read only replica."
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
NO_COPY = "MASTERDOWN this member of the group '{}' has not received the group's data from the leader yet"
LOADING = "LOADING Redis is loading the dataset in memory"  # clients search for exactly these words
NO_CLUSTER = "ERR This instance has cluster support disabled"
NOT_IN_CLUSTER = "ERR {} is not allowed in cluster mode"
CROSS_SLOT = "CROSSSLOT Keys in request don't hash to the same slot"
CLUSTER_DOWN = "CLUSTERDOWN The cluster is down"
CLUSTER_READS_ONLY = "CLUSTERDOWN The cluster is down and only accepts read commands"
SLOT_UNASSIGNED = "CLUSTERDOWN Hash slot not served"
TRY_AGAIN = "TRYAGAIN Multiple keys request during rehashing of slot"
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
WAIT_ON_REPLICA = "ERR WAIT cannot be used with replica instances, which take no writes."
WAITAOF_ON_REPLICA = "ERR WAITAOF cannot be used with replica instances, which take no writes."
BAD_LEADER_PORT = "ERR Invalid master port"
BAD_LEADER_HOST = "ERR Invalid master host"
BAD_ANNOUNCED_HOST = "ERR REPLCONF ip-address must be a host's name or address"
BAD_LOCAL = "ERR value is out of range, value must between 0 and 1"
BAD_FAILOVER_TIMEOUT = "ERR FAILOVER timeout must be greater than 0"
INCOMPLETE = (
    "ERR this server has not caught up with a leader yet, so it may lack data: promote another replica, or send"
    " REPLICAOF NO ONE FORCE"
)
DAMAGED = (
    "ERR the store of this server is damaged (INFO scrub_damaged): promote another replica, or send"
    " REPLICAOF NO ONE FORCE"
)
FAILOVER_FORCE = "ERR FAILOVER with force option requires both a timeout and target HOST and IP."
SYNC_UNSUPPORTED = (
    "ERR SYNC is not supported: replicas of this server are tidelog servers, which send PSYNC. There are no RDB files; "
    "'tidelog backup' makes a backup"
)
DUMP_UNSUPPORTED = (
    "ERR DUMP and RESTORE are not supported: what they exchange is a piece of an RDB file, and there are none. RENAME "
    "moves a key, COPY copies a string; 'tidelog export' copies streams to a Redis, 'tidelog import' from one"
)
SAME_OBJECT = "ERR source and destination objects are the same"
BAD_REPLID = "ERR PSYNC replicationid must be 40 hex digits, or ?"
IS_REPLICA = "ERR Command is not valid when client is a replica."
BAD_COMMAND = "ERR Invalid command specified"
COMMAND_WITHOUT_KEYS = "ERR The command has no key arguments"
COMMAND_ARITY = "ERR Invalid number of arguments specified for command"
COMMAND_ARGUMENTS = "ERR Invalid arguments specified for command"
BAD_SLOWLOG_COUNT = "ERR count should be greater than or equal to -1"
NO_SSUBSCRIBE_IN_EXEC = "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"
NO_MONITOR_IN_EXEC = "ERR MONITOR isn't allowed for DENY BLOCKING client"
SAVE_RUNNING = "ERR Background save already in progress"
CHILD_ACTIVE = (
    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to schedule a "
    "BGSAVE whenever possible."
)
NO_SHUTDOWN = "ERR No shutdown in progress."
REWRITE_RUNNING = "ERR Background append only file rewriting already in progress"
DEBUG_NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)

# texts with words of the call, in this order, for quoting()
NO_GROUP = "NOGROUP No such key '{}' or consumer group '{}'"
NO_GROUP_TO_READ = "NOGROUP No such key '{}' or consumer group '{}' in XREADGROUP with GROUP option"
NO_GROUP_OF_KEY = "NOGROUP No such consumer group '{}' for key name '{}'"
NO_STAGE = "NOSTAGE No such stage '{}'"
UNKNOWN_OPTION_OF = "ERR Unrecognized {} option '{}'"
BAD_HELLO = "ERR Syntax error in HELLO option '{}'"
UNRECOGNIZED_OPTION = "ERR Unrecognized option '{}'"
UNKNOWN_CLIENT_TYPE = "ERR Unknown client type '{}'"
NO_SUCH_USER = "ERR No such user '{}'"
USER_NOT_FOUND = "ERR User '{}' not found"
COMMAND_NOT_FOUND = "ERR Command '{}' not found"
UNKNOWN_CATEGORY = "ERR Unknown category '{}'"
NO_SAMPLES = "ERR No samples available for event '{}'"


def quoting(text: str, *words: bytes) -> CommandError:
    """Return the error whose text is ``text`` with these words of the call in it."""
    return CommandError(text.format(*map(show, words)))


def no_producer(option: bytes) -> CommandError:
    return CommandError(f"ERR {option.decode()} requires a non-empty producer ID")


def not_within(option: bytes, most: int) -> CommandError:
    return CommandError(f"ERR {option.decode()} must be between 1 and {most}")


def wrong_type() -> CommandError:
    return CommandError(WRONG_TYPE)


def syntax() -> CommandError:
    return CommandError(SYNTAX)


def not_integer() -> CommandError:
    return CommandError(NOT_INTEGER)


def arity(name: str) -> CommandError:
    """Return the error for a wrong number of arguments. ``name``: in lower case, with ``|sub`` for a subcommand."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")


def prefix_overlaps(prefix: bytes, other: bytes, existing: bool) -> CommandError:
    which = "an existing" if existing else "another provided"
    return CommandError(
        f"ERR Prefix '{show(prefix)}' overlaps with {which} prefix '{show(other)}'. Prefixes for a single client must "
        "not overlap."
    )


def unbalanced(command: str, words: str) -> CommandError:
    """Return the error for more keys than IDs in ``xread`` or ``xreadgroup``. ``words``: alternatives to an ID."""
    return CommandError(
        f"ERR Unbalanced '{command}' list of streams: for each stream key an {words} must be specified."
    )


def meaningless_id(word: str) -> CommandError:
    """Return the error for an ID in XREADGROUP that only XREAD accepts. ``word``: ``$`` or ``+``."""
    return CommandError(
        f"ERR The {word} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer "
        f"by specifying a proper ID, or use the > ID to get new messages. The {word} ID would just return an empty "
        "result set."
    )


def bad_claim(what: str, command: str) -> CommandError:
    """Return the error for an argument that is not a number. ``what``: its name; ``command``: XCLAIM or XAUTOCLAIM."""
    return CommandError(f"ERR Invalid {what} argument for {command}")


def too_many_keys(command: str, keys: int, most: int) -> CommandError:
    return CommandError(f"ERR {command} takes at most {most} keys in one call, not {keys}")


def long_name(what: str, size: int, most: int) -> CommandError:
    return CommandError(f"ERR the name of the {what} has {size} bytes; at most {most} are allowed")


def too_many_arguments(command: str, given: int, most: int) -> CommandError:
    name = command.replace("|", " ").upper()
    return CommandError(f"ERR {name} takes at most {most} arguments in one call, not {given}")


def expansion(directive: str, most: int, made: int) -> CommandError:
    """Return the error for a command that would create much more data than it has sent. ``most``, ``made``: bytes."""
    return CommandError(
        f"ERR the fields are stored with every entry, which would add {made} bytes to the size of the command; "
        f"'{directive}' allows {most}. Send fewer values at once, or shorter fields"
    )


def stale(fence: bytes, epoch: int, done: int) -> CommandError:
    return CommandError(f"STALE Epoch {epoch} of fence '{show(fence)}' comes after epoch {done} was published")


def conflict(fence: bytes, epoch: int, done: bytes, check: bytes) -> CommandError:
    return CommandError(
        f"CONFLICT Epoch {epoch} of fence '{show(fence)}' was published with CHECK '{show(done)}', not '{show(check)}'"
    )


def bad_subcommand(argv: Sequence[bytes]) -> CommandError:
    """Return the error for invalid arguments of a known subcommand, although their number is within its arity."""
    return CommandError(
        f"ERR unknown subcommand or wrong number of arguments for '{show(argv[1])}'. Try {show(argv[0]).upper()} HELP."
    )


def bad_name(what: str) -> CommandError:
    """Return the error for a name with invalid characters. ``what``: its purpose, ``Client names`` or ``lib-name``."""
    return CommandError(f"ERR {what} cannot contain spaces, newlines or special characters.")


def bad_rule(word: bytes, reason: str) -> CommandError:
    """Return the error for an invalid rule of ACL SETUSER. ``word`` may be a password; the recipient has sent it."""
    return CommandError(f"ERR Error in ACL SETUSER modifier '{show(word)}': {reason}")


def command_denied(user: bytes, name: str) -> CommandError:
    """Return the error for a command that the user may not run. ``name``: in lower case, with ``|sub`` for a
    subcommand."""
    return CommandError(f"NOPERM User {show(user)} has no permissions to run the '{name}' command")


def denied_since_queued(reason: str) -> CommandError:
    return CommandError(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
        f"This command is no longer allowed for the following reason: {reason}"
    )


def show(raw: bytes, limit: int = 128) -> str:
    """Return a peer's bytes as text for an error reply: printable, on one line, at most ``limit`` characters."""
    text = raw[:limit].decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else "?" for c in text)
