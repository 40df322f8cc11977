"""Permissions, in the style of Redis's ACL. ``docs/acl.md`` describes them for operators.

    check        decides whether a user may make a call
    rules        the words of ACL SETUSER, ``user`` lines and ACL files; describes a user by such words
    unsupported  commands of Redis that tidelog does not have
"""
