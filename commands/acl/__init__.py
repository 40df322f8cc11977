"""Users and what they may do, in the style of Redis's ACL; ``docs/acl.md`` is for those who run a server.

    absent    commands of Redis that tidelog does not have
    check     whether a user may make a call
    denials   ACL LOG: the latest calls and logins that were denied
    patterns  the patterns of a user, and the search for those that match
    rules     the words of ACL SETUSER, ``user`` lines and ACL files; and a user described by such words
    throttle  logins wait after failures from their address
    user      one user: flags, passwords, commands, keys and channels
"""
