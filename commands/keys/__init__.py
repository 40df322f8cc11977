"""Redis's commands for keys and strings.

    counters      INCR, DECR and related commands, INCRBYFLOAT
    expiry        EXPIRE, TTL, PERSIST and related commands
    keys          DEL, EXISTS, TYPE, TOUCH, KEYS, SCAN, RANDOMKEY, OBJECT
    increx        INCREX
    longdouble    the numbers of INCRBYFLOAT and INCREX
    manystrings   MGET, MSET, MSETNX, MSETEX
    rename        RENAME, RENAMENX, COPY
    scripts       EVAL, EVALSHA, SCRIPT: the scripts of redis-py's Lock, and no others
    setoptions    options, conditions and limits of the commands that set strings
    strings       SET, GET and related commands, conditional deletes
    substrings    APPEND, GETRANGE, SUBSTR, SETRANGE
    transactions  MULTI, EXEC, WATCH
"""
