"""Users: their state, without the meaning of their rules (see ``commands.acl``).

    denials   ACL LOG: the latest calls and logins that were denied
    patterns  the patterns of a user, and the search for those that match
    throttle  delays logins after failures from the same address
    user      one user: flags, passwords, commands, keys and channels
"""
