"""The RESP protocol (RESP2 and RESP3): decodes requests, encodes replies. Handles bytes only.

    decode         bytes to commands in one fast pass; ``exact`` for the rest
    errors         every error that a client can see, and the four families that they belong to
    exact          bytes to commands, incrementally; limits are enforced before a length is believed
    hiredisparser  bytes to commands by hiredis, if ``decode`` is not compiled
    inline         the words of an inline command
    reply          replies to bytes
"""
