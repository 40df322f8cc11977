"""The wire: requests decoded, replies encoded (RESP2 and RESP3). Knows bytes only.

    decode  bytes to commands: hiredis where its result can be proven right, ``exact`` for everything else
    errors  every error that a client can see, and the four families that they belong to
    exact   bytes to commands, incrementally; limits are enforced before a length is believed
    inline  the words of an inline command
    reply   replies to bytes, in RESP2 and RESP3
"""
