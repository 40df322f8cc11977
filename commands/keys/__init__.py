"""Keys and strings, as Redis has them.

    expiry        EXPIRE, TTL and their kin
    glob          Redis's patterns
    keys          deleting, asking, SCAN, OBJECT
    strings       SET, GET and their kin, counters, conditional writes and deletes
    transactions  MULTI, EXEC, WATCH
"""
