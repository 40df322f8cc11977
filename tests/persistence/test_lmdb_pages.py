"""The check of LMDB's pages: it accepts every healthy file and names each kind of damage."""

from __future__ import annotations

import errno
from pathlib import Path
from struct import pack_into, unpack_from

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.lmdbfile import open_env, translated
from persistence.lmdbpages import DamageError, verify
from resp.errors import CorruptError
from tests.persistence.lmdbdamage import LmdbFile

PAGE = 4096
SIZES = st.sampled_from([0, 1, 30, 900, 2000, 2040, 4000, 5000, 30_000])
CHANGES = st.lists(
    st.lists(st.tuples(st.sampled_from(["put", "delete", "drop"]), st.integers(0, 60), SIZES), max_size=40), max_size=8
)


@given(CHANGES, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_healthy_file_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[list[tuple[str, int, int]]], reading: bool
) -> None:
    path = tmp_path_factory.mktemp("env")
    with lmdb.open(str(path), map_size=1 << 28, max_dbs=2) as env:
        dbs = [env.open_db(b"one"), env.open_db(b"two")]
        for number, changes in enumerate(transactions):
            reader = env.begin() if reading else None  # keeps pages from being used again
            with env.begin(write=True) as txn:
                for what, key, size in changes:
                    db = dbs[key % 2]
                    name = b"%0450d" % key if key % 2 else b"%08d" % key  # long ones need branch pages
                    if what == "put":
                        txn.put(name, bytes([number]) * size, db=db)
                    elif what == "delete":
                        txn.delete(name, db=db)
                    elif not key:
                        txn.drop(db, delete=False)
            if reader is not None:
                reader.abort()
            keys = verify(path / "data.mdb", b"one", 8, [b"one", b"two"])  # each commit is what a crash may leave
            with env.begin(db=dbs[0]) as txn:
                assert keys == b"".join(bytes(key) for key, _ in txn.cursor())


def test_pages_that_were_never_written_may_be_missing(tmp_path: Path) -> None:
    """LMDB counts them nevertheless: only pages that are in use must be there."""
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=1) as env:
        one = env.open_db(b"one")
        with env.begin(write=True, db=one) as txn:
            txn.put(b"kept", b"x")
        for number in range(10):  # pages at the end become free, the tree moves into others
            with env.begin(write=True, db=one) as txn:
                if not number:
                    txn.put(b"big", b"y" * 200_000)
                elif number == 1:
                    txn.delete(b"big")
                txn.put(b"number", b"%d" % number)
        last = env.info()["last_pgno"]
    data = tmp_path / "data.mdb"
    whole = data.read_bytes()
    pages = len(whole) // PAGE
    verify(data)
    while True:  # from the end, as long as what goes is used by nothing
        data.write_bytes(whole[: (pages - 1) * PAGE])
        try:
            verify(data)
        except DamageError as damage:
            assert "is missing" in str(damage)  # noqa: PT017
            break
        pages -= 1
    assert 3 < pages < last, "everything up to the last page was wanted"
    data.write_bytes(whole[: pages * PAGE])
    env, _ = open_env(tmp_path, 1 << 28, 1)
    with env, env.begin(db=env.open_db(b"one")) as txn:
        assert txn.get(b"kept") == b"x"


META = 16 + 24  # offset in a meta page: the database of free pages, then the main one, last page, transaction
ROOT = 40  # offset in a database


def newest(raw: bytearray) -> int:
    """Offset of the two databases in the meta page that counts."""
    return max((0, 1), key=lambda page: int(unpack_from("=Q", raw, page * PAGE + META + 96 + 8)[0])) * PAGE + META


# -- damage made by hand -------------------------------------------------------------------------------------
@pytest.fixture
def data(tmp_path: Path) -> Path:
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=1) as env:
        one = env.open_db(b"one")
        with env.begin(write=True, db=one) as txn:
            txn.put(b"a", b"small")
            txn.put(b"b", b"x" * 5000)
            txn.put(b"c", b"y" * 5000)
            txn.put(b"d", b"z" * 5000)
        with env.begin(write=True, db=one) as txn:
            txn.delete(b"d")
    return tmp_path / "data.mdb"


class Damage:
    """The one leaf page of database "one" in the file above, and what lies in it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.raw = bytearray(data.read_bytes())
        self.free = newest(self.raw)  # offset of the database of free pages
        main = unpack_from("=Q", self.raw, self.free + 48 + ROOT)[0] * PAGE
        self.one = main + unpack_from("=H", self.raw, main + 16)[0] + 8 + 3  # offset of database "one"
        self.leaf = unpack_from("=Q", self.raw, self.one + ROOT)[0] * PAGE
        places = unpack_from("=3H", self.raw, self.leaf + 16)
        self.small, self.big, self.other = (self.leaf + place for place in places)

    def refused(self, match: str) -> None:
        self.data.write_bytes(self.raw)
        with pytest.raises(DamageError, match=match):
            verify(self.data)
        with pytest.raises(CorruptError, match=str(self.data)):
            open_env(self.data.parent, 1 << 28, 0)


def test_an_entry_that_leaves_its_page(data: Path) -> None:
    damage = Damage(data)
    pack_into("=H", damage.raw, damage.small, 4000)
    damage.refused("an entry exceeds it")


def test_an_overflow_page_that_is_used_twice(data: Path) -> None:
    damage = Damage(data)
    damage.raw[damage.other + 9 : damage.other + 17] = damage.raw[damage.big + 9 : damage.big + 17]
    damage.refused("used twice")


@pytest.mark.parametrize("number", [0, 1, 10**6, 2**63])
def test_an_overflow_page_that_can_not_be(data: Path, number: int) -> None:
    damage = Damage(data)
    pack_into("=Q", damage.raw, damage.big + 9, number)
    damage.refused("an invalid reference")


def test_a_page_that_is_both_free_and_in_use(data: Path) -> None:
    damage = Damage(data)
    used = unpack_from("=Q", damage.raw, damage.big + 9)[0]
    leaf = unpack_from("=Q", damage.raw, damage.free + ROOT)[0] * PAGE
    place = leaf + unpack_from("=H", damage.raw, leaf + 16)[0]
    pack_into("=QQ", damage.raw, place + 16, 1, used)  # after a head and a key of 8 bytes: a list of one page
    pack_into("=H", damage.raw, place, 16)
    damage.refused("both free and in use")


@pytest.mark.parametrize(("field", "by"), [(8, 1), (16, 1), (16, -1), (24, -1), (32, 1), (32, -1)])
def test_counts_that_are_wrong(data: Path, field: int, by: int) -> None:
    """Branch, leaf and overflow pages, and entries."""
    damage = Damage(data)
    at = damage.one + field
    pack_into("=Q", damage.raw, at, unpack_from("=Q", damage.raw, at)[0] + by)
    damage.refused("instead of")


# -- keys, and the names of databases ------------------------------------------------------------------------
@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file with a branch page."""
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=1) as env, env.begin(write=True) as txn:
        one = env.open_db(b"one", txn=txn)
        for number in range(400):
            txn.put(b"key %03d" % number * 3, b"x" * 30, db=one)
    return tmp_path / "data.mdb"


def found(many: Path) -> list[bytes | None]:
    """What LMDB finds under each key."""
    env = lmdb.open(str(many.parent), max_dbs=1, readonly=True, lock=False)
    with env, env.begin(db=env.open_db(b"one", create=False)) as txn:
        return [txn.get(b"key %03d" % number * 3) for number in range(400)]


def full_leaf(file: LmdbFile) -> int:
    """A leaf page that holds some entries of it."""
    pages = (page for page in range(2, 20) if unpack_from("=H", file.raw, page * PAGE + 10)[0] == 2)
    return next(page for page in pages if len(file.nodes(page)) > 10)


def test_every_flip_of_a_separator_is_refused_or_hides_no_key(many: Path) -> None:
    file = LmdbFile(many)
    refused = same = 0
    for start, end in list(file.separators(b"one")):
        for at in range(start, end):
            for bit in range(8):
                file.flip(at, bit)
                file.write()
                try:
                    verify(many)
                except DamageError as damage:
                    assert "out of order" in str(damage)  # noqa: PT017
                    refused += 1
                else:
                    assert all(found(many))
                    same += 1
                file.flip(at, bit)
    assert refused > 500
    assert same > 100


def test_keys_in_another_order_are_refused(many: Path) -> None:
    file = LmdbFile(many)
    leaf = full_leaf(file)
    whole = bytes(file.raw)
    places = [leaf * PAGE + 16 + 2 * number for number in range(len(file.nodes(leaf)))]
    for first, second, twice in ((0, 1, False), (0, -1, False), (3, 4, True)):
        one, other = file.raw[places[first] :][:2], file.raw[places[second] :][:2]
        file.raw[places[first] : places[first] + 2] = other
        if not twice:
            file.raw[places[second] : places[second] + 2] = one
        file.write()
        with pytest.raises(DamageError, match=r"out of order|other sizes"):
            verify(many)
        file.raw[:] = whole


def test_an_entry_of_another_length_is_refused(many: Path) -> None:
    """It would be noticed when its value is read; until then LMDB may have moved its neighbours by it."""
    file = LmdbFile(many)
    leaf = full_leaf(file)
    for node in file.nodes(leaf)[1:-1]:
        file.flip(node, 3)
        file.write()
        with pytest.raises(DamageError, match=r"wrong sizes|exceeds it"):
            verify(many)
        file.flip(node, 3)


def test_the_head_of_an_overflow_page_is_checked(data: Path) -> None:
    """LMDB believes its number of pages when the value is deleted, and frees as many."""
    damage = Damage(data)
    page = unpack_from("=Q", damage.raw, damage.big + 9)[0] * PAGE
    for at in (0, 10, 12, 13, 14):
        damage.raw[page + at] ^= 4
        damage.refused("is damaged|an invalid reference|used twice|missing|both free")
        damage.raw[page + at] ^= 4


def test_names_of_databases(many: Path) -> None:
    verify(many, known=[b"one"])
    verify(many, known=[b"one", b"two"], newer=[b"two"])
    with pytest.raises(DamageError, match=r"^its database 'two' is missing$"):
        verify(many, known=[b"one", b"two"])
    with pytest.raises(
        DamageError, match=r"^its database 'two' is missing; it has a database 'one', which this tidelog does not know$"
    ):
        verify(many, known=[b"two"], newer=[b"two"])
    with lmdb.open(str(many.parent / "empty"), max_dbs=1), pytest.raises(DamageError, match="'one' is missing"):
        verify(many.parent / "empty" / "data.mdb", known=[b"one"])


def test_a_key_of_the_wrong_size(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=1) as env, env.begin(write=True) as txn:
        txn.put(b"1234567", b"", db=env.open_db(b"one", txn=txn))
    with pytest.raises(DamageError, match="wrong size in one"):
        verify(tmp_path / "data.mdb", b"one", 8)


# -- LMDB's errors as ours -----------------------------------------------------------------------------------
ERRORS = [kind for kind in vars(lmdb).values() if isinstance(kind, type) and issubclass(kind, lmdb.Error)]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_lmdb_is_translated(error: type[lmdb.Error]) -> None:
    ours = translated(Path("/data/file"), error("mdb_put: No space left on device"))
    assert isinstance(ours, OSError | CorruptError)
    assert "/data/file" in str(ours)


def test_errors_of_the_disk_keep_their_numbers() -> None:
    for text, number in (("File too large", errno.EFBIG), ("No space left on device", errno.ENOSPC), ("x", errno.EIO)):
        ours = translated(Path("f"), lmdb.Error(f"mdb_txn_commit: {text}"))
        assert isinstance(ours, OSError)
        assert ours.errno == number
