"""Redis's commands for keys and strings.

    counters      INCR, DECR and related commands, INCRBYFLOAT
    expiry        EXPIRE, TTL, PERSIST and related commands
    glob          glob patterns
    keys          DEL, EXISTS, TYPE, TOUCH, KEYS, SCAN, RANDOMKEY, OBJECT
    longdouble    the numbers of INCRBYFLOAT
    manystrings   MGET, MSET, MSETNX, MSETEX
    moving        RENAME, RENAMENX, COPY
    scripts       EVAL, EVALSHA, SCRIPT: the scripts of redis-py's Lock, and no others
    setting       what commands that set strings share: options, conditions, limits
    strings       SET, GET and related commands, conditional deletes
    substrings    APPEND, GETRANGE, SUBSTR, SETRANGE
    transactions  MULTI, EXEC, WATCH
"""
