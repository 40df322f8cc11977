"""The plan of a cluster on one machine, its settings, and its directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.cluster import settings
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.plan import ClusterPlan, decode

PLAN = ClusterPlan(7000, "127.0.0.1", 0).extended(2, 1)


def ports(plan: ClusterPlan) -> dict[str, int]:
    return {each.name: each.port for each in plan.members}


def test_names_and_ports_stay() -> None:
    assert ports(PLAN) == {"1a": 7000, "1b": 7001, "2a": 7002, "2b": 7003}
    longer = PLAN.extended(3, 2)
    assert ports(longer) == {
        "1a": 7000, "1b": 7001, "1c": 7004, "2a": 7002, "2b": 7003, "2c": 7005, "3a": 7006, "3b": 7007, "3c": 7008,
    }  # fmt: skip
    assert decode(longer.encode(), "plan") == longer


def test_the_name_of_a_removed_group_is_not_used_again() -> None:
    shorter = PLAN.extended(3, 1).without("3")
    assert list(shorter.extended(3, 1).groups) == ["1", "2", "4"]
    assert shorter.with_group("3", {"3a": 4, "3b": 5}) == PLAN.extended(3, 1)


@pytest.mark.parametrize(("replicas", "least"), [(0, "1"), (1, "1"), (2, None)])
def test_a_group_continues_without_one_replica(replicas: int, least: str | None) -> None:
    found = ClusterPlan(7000, "127.0.0.1", 0).extended(1, replicas).flags.get("min-in-sync")
    assert found == (None if least is None else (least,))


def test_members_log_in_with_the_password_of_the_server() -> None:
    plan = ClusterPlan(7000, "127.0.0.1", 0, settings={"requirepass": ("secret",), "min-in-sync": ("2",)})
    assert plan.flags == {"requirepass": ("secret",), "masterauth": ("secret",), "min-in-sync": ("2",)}
    assert plan.password == "secret"


@pytest.mark.parametrize(
    ("groups", "replicas", "error"),
    [
        (1, 1, "has 2 groups, and --groups is 1: .*tidelog cluster rebalance --without GROUP.*remove it"),
        (2, 0, "has 1 replica, and --replicas is 0"),
        (1001, 1, "at most 1000 groups"),
        (2, 26, "25 replicas"),
    ],
)
def test_plans_that_are_refused(groups: int, replicas: int, error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        PLAN.extended(groups, replicas)


def test_ports_beyond_the_last_one() -> None:
    with pytest.raises(ClusterError, match="need the ports 65535 to 65536"):
        ClusterPlan(65535, "127.0.0.1", 0).extended(2, 0)


def test_the_last_group_is_not_removed() -> None:
    with pytest.raises(ClusterError, match="the only one"):
        PLAN.without("1").without("2")
    with pytest.raises(ClusterError, match="there is no group 9: the groups are 1, 2"):
        PLAN.without("9")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, "plan has format 2, but this version of tidelog supports only format 1"),
        ({"port": -1}, "plan is damaged"),
        ({"port": True}, "plan is damaged"),
        ({"groups": {"1": {"../x": 0}}}, "plan is damaged .its members"),
        ({"groups": {"1": {"1a": 0, "1b": 0}}}, "plan is damaged .its members"),
        ({"groups": []}, "plan is damaged"),
    ],
)
def test_damaged_plans(change: dict[str, object], error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        decode(json.dumps(json.loads(PLAN.encode()) | change), "plan")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\0"])
def test_plans_that_are_not_json(text: str) -> None:
    with pytest.raises(ClusterError, match="plan is damaged"):
        decode(text, "plan")


def test_settings() -> None:
    assert settings.parse(["save=900 1", "dbfilename="], ["--maxmemory", "1gb", "--save", "60", "5"]) == {
        "save": ("60", "5"), "dbfilename": ("",), "maxmemory": ("1gb",),
    }  # fmt: skip
    assert settings.config_lines({"save": ("60", "5"), "loglevel": ("",)}) == 'save "60" "5"\nloglevel ""\n'
    assert settings.config_lines({"requirepass": ('a "b" \\ä\n',)}) == 'requirepass "a \\"b\\" \\\\\\xc3\\xa4\\x0a"\n'


@pytest.mark.parametrize(
    ("assignments", "words", "error"),
    [
        (["x"], [], "write --set name=value"),
        (["=1"], [], "write --set name=value"),
        (['a="'], [], "No closing quotation"),
        (["PORT=1"], [], "port cannot be set for all members: use the option --port"),
        (["dir=x"], [], '"cluster up" chooses it'),
        (["tls-port=1"], [], "every member needs its own"),
        ([], ["x"], "write -- --name value"),
        ([], ["--maxmemory"], "--maxmemory needs a value"),
    ],
)
def test_settings_that_are_refused(assignments: list[str], words: list[str], error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        settings.parse(assignments, words)


def test_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ClusterError, match=r"has files that are not a cluster's \(notes.txt\): use a new"):
        ClusterFolder(tmp_path).exists()


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ClusterError, match="Not a directory; use another --dir"),
        ClusterFolder(tmp_path / "file/c").supervised(),
    ):
        pass
    with pytest.raises(ClusterError, match="is not the directory of a cluster; tidelog cluster up"):
        ClusterFolder(tmp_path / "missing").load()


def test_a_plan_is_replaced(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.save(PLAN)
    before = folder.stamp()
    with folder.editing() as plan:
        folder.save(plan.extended(3, 1))
    assert folder.stamp() != before
    assert folder.load() == PLAN.extended(3, 1)
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600


def test_the_url_of_the_coordinator_is_quoted(tmp_path: Path) -> None:
    assert ClusterFolder(tmp_path / "a b%").coordinator == f"file://{tmp_path}/a%20b%25/coordinator"
