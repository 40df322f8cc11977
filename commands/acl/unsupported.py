"""Redis's commands that tidelog does not have. ACL rules may name them, so that the server starts with an ACL file that
was written for Redis.

The names are those of Redis up to 8.10, Valkey and Sentinel. A name with a dot is a module's command.
"""

from __future__ import annotations

from typing import Final

_PLAIN: Final = """
aragg arcount ardel ardelrange arget argetrange argrep arinfo arinsert arlastitems arlen armget armset arnext arop
arring arscan arseek arset bitcount bitfield bitfield_ro bitop bitpos blmove blmovem blmpop blpop brpop brpoplpush
bzmpop bzpopmax bzpopmin eval_ro evalsha_ro fcall fcall_ro geoadd geodist geohash geopos georadius georadius_ro
georadiusbymember georadiusbymember_ro geosearch geosearchstore getbit hdel hexists hexpire hexpireat hexpiretime hget
hgetall hgetdel hgetex himport hincrby hincrbyfloat hkeys hlen hmget hmset hpersist hpexpire hpexpireat hpexpiretime
hpttl hrandfield hscan hset hsetex hsetnx hstrlen httl hvals lcs lindex linsert llen lmove lmovem lmpop lolwut lpop
lpos lpush lpushx lrange lrem lset ltrim migrate pfadd pfcount pfdebug pfmerge pfselftest restore-asking rpop
rpoplpush rpush rpushx sadd scard sdiff sdiffcard sdiffstore setbit sinter sintercard sinterstore sismember smembers
smismember smove sort sort_ro spop srandmember srem sscan sunion sunioncard sunionstore vadd vcard vdim vemb vgetattr
vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim xidmprecord zadd zcard zcount zdiff zdiffstore zincrby
zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore
zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore
zrevrank zscan zscore zunion zunionstore
"""
_WITH_SUBCOMMANDS: Final = {
    "backup": "abort cleanup help list seal start status",
    "client": "capa import-source",
    "cluster": (
        "addslots addslotsrange bumpepoch cancelslotmigrations delslots delslotsrange failover flushslots forget "
        "getslotmigrations meet migrateslots migration replicate reset saveconfig set-config-epoch setslot slot-stats "
        "syncslots"
    ),
    "commandlog": "get help len reset",
    "function": "delete dump flush help kill list load restore stats",
    "hotkeys": "get help reset start stop",
    "module": "help list load loadex unload",
    "script": "debug flush kill show",
    "sentinel": (
        "ckquorum config debug failover flushconfig get-master-addr-by-name help info-cache "
        "is-master-down-by-addr master masters monitor myid pending-scripts remove replicas reset sentinels set "
        "simulate-failure slaves"
    ),
}
_SUBCOMMANDS: Final = [f"{top}|{sub}" for top, text in _WITH_SUBCOMMANDS.items() for sub in text.split()]
ABSENT: Final = frozenset([*_PLAIN.split(), *_WITH_SUBCOMMANDS, *_SUBCOMMANDS])
# categories of the types and modules of Redis 8 that tidelog does not have
MODULE_CATEGORIES: Final = frozenset(
    ("array", "bloom", "cms", "cuckoo", "json", "search", "tdigest", "timeseries", "topk", "vectorset")
)


def is_absent(name: str) -> bool:
    """Return whether tidelog lacks a command or subcommand of this name that Redis, or one of its modules, has."""
    return name in ABSENT or "." in name.partition("|")[0]
