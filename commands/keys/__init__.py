"""Redis's commands for keys and strings.

    expiry        EXPIRE, TTL, PERSIST and related commands
    glob          glob patterns
    keys          DEL, EXISTS, TYPE, TOUCH, KEYS, SCAN, RANDOMKEY, OBJECT
    strings       SET, GET and related commands, counters, conditional writes and deletes
    transactions  MULTI, EXEC, WATCH
"""
