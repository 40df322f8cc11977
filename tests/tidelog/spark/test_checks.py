"""What is kept with a batch, and what is said when another one comes with its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog import ConflictError
from tidelog.spark.checks import explained, of_batch, of_rows
from tidelog.spark.optionvalues import AUTO, NONE, OFFSETS, ROWS, OptionError

pytestmark = pytest.mark.quick

ROWS_OF = {b"a": 3, b"b": 4}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    place = tmp_path / "check point%20"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "7").write_text("v1\n{}\n{}")
    return place


def test_the_plan_of_a_batch_is_read_from_a_local_checkpoint(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = of_batch(AUTO, str(checkpoint), 7, ROWS_OF)
    assert check.startswith("offsets:")
    assert len(check) <= 64
    monkeypatch.chdir(checkpoint.parent)
    for name in (f"file:{checkpoint}", f"file://{checkpoint}", checkpoint.name):
        assert of_batch(OFFSETS, name, 7, {}) == check
    (checkpoint / "offsets" / "7").write_text("v1\n{}\n{} ")
    assert of_batch(AUTO, str(checkpoint), 7, ROWS_OF) != check


def test_the_plan_of_a_batch_is_read_by_fsspec_where_a_url_is_given(checkpoint: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    here = of_batch(AUTO, str(checkpoint), 7, ROWS_OF)
    url = "memory://tidelog-checks"
    with fsspec.open(f"{url}/offsets/7", "wb") as file:
        file.write((checkpoint / "offsets" / "7").read_bytes())
    assert of_batch(AUTO, "s3a://elsewhere", 7, ROWS_OF, url) == of_batch(OFFSETS, "", 7, {}, url) == here
    assert of_batch(ROWS, "", 7, ROWS_OF, url) == of_rows(ROWS_OF)
    with pytest.raises(FileNotFoundError):
        of_batch(AUTO, "", 8, ROWS_OF, url)


@pytest.mark.parametrize("place", ["", "hdfs://host/checkpoint", "s3a://bucket/checkpoint", "/nowhere", "nowhere"])
def test_a_checkpoint_that_is_not_here(place: str) -> None:
    assert of_batch(AUTO, place, 7, ROWS_OF) == of_batch(ROWS, place, 7, ROWS_OF) == of_rows(ROWS_OF)
    assert of_batch(NONE, place, 7, ROWS_OF) == ""
    with pytest.raises(OptionError, match=rf"no local file offsets/7 in ({place}|the option checkpointLocation)"):
        of_batch(OFFSETS, place, 7, ROWS_OF)


def test_numbers_of_rows() -> None:
    assert of_rows(ROWS_OF) == of_rows({b"b": 4, b"a": 3})
    assert of_rows(ROWS_OF).startswith("rows:7:")
    others = [{b"a": 4, b"b": 3}, {b"a": 3, b"b": 4, b"c": 0}, {b"a": 7}, {b"b": 7}]
    assert len({of_rows(rows) for rows in [ROWS_OF, *others]}) == 5
    assert len(of_rows({b"a": 1 << 62})) <= 64


def test_what_is_said() -> None:
    def said(before: str, now: str) -> str:
        text = f"CONFLICT Epoch 7 of fence 'q' was published with CHECK '{before}', not '{now}'"
        return explained("batch 7", now, ConflictError(text))

    assert "planned it anew" in said("offsets:12", "offsets:34")
    assert "with 7 rows, now it has 8" in said("rows:7:12", "rows:8:34")
    assert "kept rows as its check; this run has offsets" in said("rows:7:12", "offsets:34")
    assert "kept offsets as its check; this run has rows" in said("offsets:34", "rows:7:12")
