"""The RESP protocol (RESP2 and RESP3): decodes requests, encodes replies. Handles bytes only.

    decode         decodes commands in one fast pass; ``exact`` decodes the rest
    errors         every error that a client can see, and the four families that they belong to
    exact          decodes commands incrementally; checks each length before it waits for the data
    hiredisparser  decodes commands with hiredis, if ``decode`` is not compiled
    inline         the words of an inline command
    reply          encodes replies
"""
