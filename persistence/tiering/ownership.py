"""The owner of the prefix, and the check of the object store before anything is written below it.

Rule 1: only one server or server group writes below a prefix. Its ID is in PREFIX/owner.json. The first one that
creates this file owns the prefix.
Rule 2: a store that does not return what was written, or that replaces a file that must not be replaced, is refused.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from persistence.tiering.objectstore import HistoryStore, HistoryStoreError, MissingFileError
from storage.history import owner


class ForeignPrefixError(HistoryStoreError):
    """Raised if the prefix belongs to another server or server group."""


def check_store(store: HistoryStore) -> None:
    """Write, read back, and remove a small file. Raises HistoryStoreError."""
    name = f"check-{secrets.token_hex(8)}"
    data = b"written by tidelog to check the object store; it can be deleted: " + secrets.token_hex(8).encode()
    try:
        if not store.create(name, data) or store.read(name) != data:
            raise HistoryStoreError(
                f"the object store does not return what was written to it: {name} has other bytes. Check what is"
                " between this server and the object store, such as a proxy, or use another prefix"
            )
        if store.create(name, b"other"):
            raise HistoryStoreError(
                "the object store replaces files that exist, although the request forbids it (If-None-Match):"
                " two leaders could overwrite each other's manifests. Use a store with conditional writes"
            )
    finally:
        with suppress(HistoryStoreError):
            store.remove(name)


def claim(store: HistoryStore, server: str) -> None:
    """Become the owner of the prefix, or verify that this server is. Raises HistoryStoreError, CorruptError."""
    content = owner.encode(server)
    try:
        found = owner.decode(store.read(owner.NAME))
    except MissingFileError:
        if store.names("streams"):
            raise HistoryStoreError(
                f"{store.url} contains a history, but its {owner.NAME} is missing: restore the file, or choose another"
                " prefix"
            ) from None
        store.create(owner.NAME, content)
        found = owner.decode(store.read(owner.NAME))
    _require(store, found, server)


def is_claimed(store: HistoryStore, server: str) -> bool:
    """Return whether a server owns the prefix; False if nobody does. Raises HistoryStoreError, CorruptError.

    Raises ForeignPrefixError if another one owns it.
    """
    try:
        found = owner.decode(store.read(owner.NAME))
    except MissingFileError:
        return False
    _require(store, found, server)
    return True


def _require(store: HistoryStore, found: str, server: str) -> None:
    if found != server:
        raise ForeignPrefixError(
            f"{store.url} belongs to another server or server group (ID {found}; this one has {server}): choose another"
            " prefix for tier-url. Delete nothing below the prefix if tier-free was ever set for that server: the"
            " objects can have the only copy of its entries, also for its replicas and backups"
        )
