"""scripts/demo --group, with a shorter lease: it ends with status 1 if a promise is broken."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from respserver.testing import RunningServer
from scripts import demo_group
from scripts.demo_timeline import CUT, IN_SYNC, KILLED, LEADS, Fault, Screen, Timeline
from tidelog import Client, StreamId

ROOT = Path(__file__).parent.parent


def shapes(text: str) -> set[str]:
    """The lines of an output without their numbers, and without what depends on chance: the rows of the timeline, and
    how many writes had no reply."""
    lines = (re.sub(r"[\d.,]+", "0", line.strip()) for line in text.splitlines())
    return {line for line in lines if line and not re.match(r"writes  |m0 +[^ \w]|0 writes acknowledged", line)}


@pytest.mark.slow
def test_the_demo_keeps_its_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "group.svg"
    demo_group.play(lease=1.0, calm=0.2, picture=picture)
    printed = capsys.readouterr().out
    assert printed.count("✓") == 7
    assert " writes acknowledged, 0 lost" in printed
    assert printed.count(": the writer's longest pause was ") == 3
    page = (ROOT / "docs/groups.md").read_text()
    shown = re.findall(r"^    .*", page.partition("## A demonstration\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert len(shown) > 20
    assert shapes("\n".join(shown)) <= shapes(printed)
    text = "".join(ElementTree.parse(picture).getroot().itertext())
    for what in ("kill -9 m", "kill -STOP m", "cut off m"):
        assert what in printed
        assert what in text


def test_help_explains_the_demo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["demo_group.py", "--group", "--help"])
    with pytest.raises(SystemExit, match="0"):
        demo_group.main()
    printed = capsys.readouterr().out
    assert '"Cut off" means' in printed
    assert "--lease SECONDS" in printed
    monkeypatch.setattr("sys.argv", ["demo_group.py", "--group", "--lease", "0"])
    with pytest.raises(SystemExit, match="2"):
        demo_group.main()
    assert "--lease is 0.5 to 30 seconds" in capsys.readouterr().err


# -- what the demo would find --------------------------------------------------------------------------------------
Told = list[tuple[StreamId, int]]


def reckoned(client: Client, acknowledged: Told, others: Told | None = None) -> str:
    writer: Any = SimpleNamespace(acknowledged=acknowledged, errors=Counter({"without a reply": 1}))
    return demo_group.reckon(client, writer, others or [])


def test_a_lost_duplicated_or_misplaced_entry_is_a_broken_promise(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(f"redis://127.0.0.1:{server.port}") as client:
        told = [(client.tappend(demo_group.STREAM, {"n": number}), number) for number in (1, 2, 3)]
        assert reckoned(client, told).startswith("3 writes acknowledged, 0 lost")
        assert reckoned(client, told[:1] + told[2:]).endswith("not acknowledged: 1 without a reply, of which 1 had run")
        assert capsys.readouterr().out.count("✓") == 6
        missing = (StreamId(told[-1][0].ms + 1, 0), 4)
        for lost in ([*told, missing], []), (told, [missing]), ([*told[:2], (told[2][0], 4)], []):
            with pytest.raises(SystemExit):
                reckoned(client, *lost)
            assert (
                "✗ NOT TRUE: each acknowledged entry is in the log, with the ID that the client received: 1 lost"
                in (capsys.readouterr().out)
            )
        with pytest.raises(SystemExit):
            reckoned(client, [told[1], told[0], told[2]])
        assert "✗ NOT TRUE: the log is in the order" in capsys.readouterr().out
        client.tappend(demo_group.STREAM, {"n": 2})
        with pytest.raises(SystemExit):
            reckoned(client, told)
        assert "✗ NOT TRUE: each entry is there exactly once" in capsys.readouterr().out


def test_members_that_differ_are_a_broken_promise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_group, "PATIENCE", 0.1)
    members = [SimpleNamespace(ask=lambda *_, digest=digest: digest) for digest in (b"a", b"a", b"b")]
    demo_group.compare(cast("Any", members[:2]))
    with pytest.raises(SystemExit):
        demo_group.compare(cast("Any", members))
    assert "✗ NOT TRUE: the digests of all members are equal" in capsys.readouterr().out


def test_the_state_of_a_member() -> None:
    leading = {"member": "m1", "phase": "leading", "lease_left_ms": 900}
    following = {"member": "m2", "phase": "following"}
    assert demo_group.state_of(leading, ["m1", "m2"]) == LEADS
    assert demo_group.state_of(leading | {"lease_left_ms": 0}, ["m1", "m2"]) == "not in sync"
    assert demo_group.state_of(following, ["m1", "m2"]) == IN_SYNC
    assert demo_group.state_of(following, ["m1"]) == "not in sync"
    assert demo_group.state_of(None, ["m1"]) == "not in sync"


def test_the_longest_pause_after_a_fault() -> None:
    writes = [0.0, 3.0, 4.0, 6.0, 6.5, 10.0]
    assert demo_group.longest_pause(writes, 3.5, 6.2) == (4.0, 2.0)
    assert demo_group.longest_pause(writes, 6.6, 7.0) == (6.5, 3.5)


# -- the timeline ----------------------------------------------------------------------------------------------------
def drawn() -> Timeline:
    """Three seconds: m1 leads, is killed, and m2 leads; nobody looked for a second."""
    timeline = Timeline(["m1", "m2"])
    for at, states in ((0.1, (LEADS, IN_SYNC)), (0.6, (KILLED, IN_SYNC)), (1.1, (KILLED, LEADS)), (2.6, (CUT, LEADS))):
        timeline.seen.append((at, dict(zip(("m1", "m2"), states, strict=True))))
    timeline.writes += [0.1, 0.2, 0.3, 0.4, 1.2, 1.3, 2.7]
    timeline.faults.append(Fault("kill <m1>", 0.55, 0.4, 0.8))
    return timeline


def test_rows_of_the_timeline() -> None:
    timeline = drawn()
    assert timeline.rows() == ["writes  █ ▅  ▃", "m1      █KKCCC", "m2      ░░████"]
    assert timeline.rows(2) == ["writes   ▃", "m1      CC", "m2      ██"]
    assert timeline.legend().startswith("█ leads  ░ in sync")


def test_the_timeline_as_a_file(tmp_path: Path) -> None:
    drawn().save(tmp_path / "a.svg", "a & b")
    tree = ElementTree.parse(tmp_path / "a.svg").getroot()
    text = "|".join(tree.itertext())
    assert "a & b" in text
    assert "kill <m1>" in text
    assert "longest pause 0.80 s" in text
    assert "m1: killed, 0.6 to 2.6 s" in text


def test_a_terminal_is_redrawn_in_place(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    screen = Screen(drawn(), width=15)
    screen.draw()
    screen.draw()
    screen.erase()
    rows = "   writes   ▃\n   m1      CC\n   m2      ██\n"
    assert capsys.readouterr().out == f"{rows}\x1b[3A\x1b[J{rows}\x1b[3A\x1b[J"


def test_a_file_gets_a_line_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = drawn()
    screen = Screen(timeline, width=80)
    screen.draw()
    screen.draw()
    timeline.seen.append((2.9, timeline.seen[-1][1]))
    screen.draw()
    assert capsys.readouterr().out == "     2.6 s        7 writes   m1 cut off, m2 leads\n"
