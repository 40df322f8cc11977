"""``tidelog history``: what a server has copied to an object store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connect import connected, url_option
from tidelog.cli.extras import needs
from tidelog.cli.progress import Progress
from tidelog.operating.tables import counted, duration, size, table, utc
from tidelog.operating.terminal import echo
from tidelog.transport.errors import ReplyError

if TYPE_CHECKING:
    from tidelog.history.changes import HistoryChange
    from tidelog.history.survey import Survey

YES = click.option("--yes", is_flag=True, help="Do not ask.")
STORE = click.argument("store", required=False)


@click.group("history")
def history_commands() -> None:
    """Show, verify, and repair the history of a server in an object store.

    \b
      tidelog history list                       the history of the server at --url
      tidelog history verify s3://bucket/tide    read and verify all objects
      tidelog history repair s3://bucket/tide    show what can be repaired, and ask
      tidelog history forget s3://bucket/tide --stream orders

    STORE is the tier-url of the server: a directory or an fsspec URL. Without STORE, the server at --url is asked for
    it. The credentials of the object store are those of this process, such as AWS_ACCESS_KEY_ID.
    """


@history_commands.command("list")
@STORE
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_history(store: str | None, url: str, as_json: bool) -> None:
    """List streams, their objects, what waits for its deletion, and pins."""
    with _surveyed(store, url) as found:
        pass
    waiting = [file for file in found.waiting if file["why"] != "differs"]
    if as_json:
        echo(json.dumps({
            "url": found.files.url, "owner": found.owner, "objects": len(found.objects),
            "streams": [
                {"name": stream.name.decode(errors="backslashreplace"), "sid": stream.document.get("sid"),
                 "objects": len(stream.objects), "entries": stream.entries, "bytes": stream.bytes,
                 "first_id": str(stream.objects[0].first_id) if stream.objects else None,
                 "last_id": str(stream.objects[-1].last_id) if stream.objects else None,
                 "versions": len(stream.numbers), "problem": stream.problem or None}
                for stream in found.streams
            ],
            "waiting": found.waiting, "suspended": found.deletions.get("suspended") or None, "pins": found.pins,
            "unlisted": found.unlisted,
        }))  # fmt: skip
        return
    echo(f"{found.files.url}, of server {found.owner}")
    rows = [
        [
            stream.name.decode(errors="backslashreplace"), f"{len(stream.objects):,}", f"{stream.entries:,}",
            size(stream.bytes), *_span(stream.objects), "damaged" if stream.problem else "",
        ]
        for stream in found.streams
    ]  # fmt: skip
    if rows:
        table(["stream", "objects", "entries", "bytes", "from", "to", ""], rows)
    else:
        echo("no streams")
    if waiting:
        grace = duration(found.deletions.get("grace", 0))
        total = size(sum(file["size"] for file in waiting))
        echo(f"{counted(len(waiting), 'file')} with {total} will be deleted after tier-grace ({grace})")
    kept = [file for file in found.waiting if file["why"] == "differs"]
    if kept:
        echo(
            f"{counted(len(kept), 'object')} with {size(sum(file['size'] for file in kept))} differ from the server,"
            " and are not deleted: " + ", ".join(file["name"] for file in kept[:3])
        )
    if found.unlisted:
        echo(
            f"{counted(len(found.unlisted), 'object')} in no manifest: the server deletes those whose entries are"
            " elsewhere or were removed"
        )
    for name, pin in found.pins.items():
        count = "all objects" if pin.get("objects") is None else counted(len(pin["objects"]), "object")
        echo(f"pin {name}: {count}, owner: {pin.get('owner', 'unknown, because the file is damaged')}")
    if found.deletions.get("suspended"):
        echo(f"nothing is deleted, because {found.deletions['suspended']}. See tidelog history repair --help")


def _span(objects: list[Any]) -> tuple[str, str]:
    """Return the times of the first and the last ID; "-" for one that is no time."""
    if not objects:
        return "-", "-"

    def shown(ms: int) -> str:
        return utc(ms) if 10**11 < ms < 10**14 else f"{ms}"

    return shown(objects[0].first_id.ms), shown(objects[-1].last_id.ms)


@history_commands.command()
@STORE
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(store: str | None, url: str, as_json: bool) -> None:
    """Read all manifests and objects, and verify them.

    The exit code is 1 if a manifest or an object is missing or damaged, or if a manifest has a gap.
    """
    with needs("tidelog history", "history"):
        from tidelog.history.checking import verify as verified
    with _surveyed(store, url) as found, Progress() as progress:
        problems = verified(found, lambda done, total: progress.show_bytes("verifying", done, total))
    listed = found.listed
    total = sum(its[0][1].size for its in listed.values())
    if as_json:
        echo(json.dumps({"url": found.files.url, "objects": len(listed), "bytes": total, "problems": problems}))
    else:
        for problem in problems:
            echo(problem)
        state = f"{counted(len(problems), 'problem')}. See tidelog history repair --help" if problems else "all intact"
        echo(f"{counted(len(found.streams), 'stream')}, {counted(len(listed), 'object')}, {size(total)}: {state}")
    if problems:
        raise SystemExit(1)


@history_commands.command()
@STORE
@url_option
@click.option("--read", is_flag=True, help="Also read all objects, as verify does, to find damaged ones.")
@YES
def repair(store: str | None, url: str, read: bool, yes: bool) -> None:
    """Repair what can be repaired.

    \b
    - A damaged manifest gets a new version: the newest version that can be read,
      and the objects after it. If no version can be read, --url must name the
      server.
    - A missing object, and with --read a damaged one, is written again by the
      next pass of the server if its store still has all of the object's nodes,
      unchanged. The log of the server has the result.
    - If deletions stopped because the data directory of the server seems to be
      an older copy: they continue. What the server does not have is then deleted
      after tier-grace, so verify its data first.

    The command shows the changes, and asks. It names a remedy for what can't be repaired, and exits with 1. Nothing is
    deleted. The server can run meanwhile.
    """
    with needs("tidelog history", "history"):
        from tidelog.history.changes import repairs
        from tidelog.history.checking import damaged
    given = click.get_current_context().get_parameter_source("url") != click.core.ParameterSource.DEFAULT
    with _surveyed(store, url) as found:
        with Progress() as progress:
            broken = damaged(found, lambda done, total: progress.show_bytes("verifying", done, total)) if read else ()
        changes, hopeless = repairs(found, _sids(url) if store is None or given else None, broken)
        for text in hopeless:
            echo(text, err=True)
        if changes:
            _apply(changes, yes)
        elif not hopeless:
            echo(f"{found.files.url}: nothing to repair. tidelog history verify also reads the objects")
    if hopeless:
        raise SystemExit(1)


@history_commands.command()
@STORE
@url_option
@click.option("--stream", "streams", multiple=True, help="Drop the history of this stream; may repeat.")
@click.option("--object", "objects", multiple=True, help="Drop this object, and those before it.")
@click.option("--pin", "pins", multiple=True, help="Remove this pin: its backup or server does not exist any more.")
@YES
def forget(
    store: str | None, url: str, streams: tuple[str, ...], objects: tuple[str, ...], pins: tuple[str, ...], yes: bool
) -> None:
    """Drop parts of a history, so that they are not expected any more.

    The manifests no longer list what is dropped. Entries that are in the store are copied again. The server deletes the
    objects after tier-grace, but only when the entries in them were removed from the stream, because replicas can refer
    to them. The command shows the changes, and asks. The server can run meanwhile.
    """
    if not (streams or objects or pins):
        raise click.UsageError("name what to drop: --stream, --object, or --pin")
    with needs("tidelog history", "history"):
        from tidelog.history import changes as making
    with _surveyed(store, url) as found:
        changes = [making.forget_stream(found, os.fsencode(stream)) for stream in streams]
        for one in objects:
            changes += making.forget_object(found, one.removeprefix("objects/"))
        for pin in pins:
            changes.append(making.forget_pin(found, pin))
        _apply(changes, yes)


def _apply(changes: list[HistoryChange], yes: bool) -> None:
    for change in changes:
        echo(f"- {change.text}")
    if not yes and not click.confirm(f"Make {counted(len(changes), 'change')}?"):
        raise click.ClickException("nothing was changed")
    for change in changes:
        change.apply()
    echo(f"{counted(len(changes), 'change')} made at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")


@contextmanager
def _surveyed(store: str | None, url: str) -> Iterator[Survey]:
    """Yield what is below the prefix. Errors become messages of the CLI."""
    with needs("tidelog history", "history"):
        from tidelog.history.errors import HistoryError
        from tidelog.history.files import HistoryFiles
        from tidelog.history.survey import survey
    place = store or _store_of(url)
    try:
        with Progress() as progress:
            found = survey(
                HistoryFiles(place), lambda done, total: progress.show_entries("reading manifests", done, total)
            )
        yield found
    except HistoryError as error:
        raise click.ClickException(str(error)) from None


def _store_of(url: str) -> str:
    """Return the ``tier-url`` of a server."""
    with connected(url) as client:
        found: dict[Any, Any] = client.redis.config_get("tier-url")
    place = next(iter(found.values()), "")
    place = place.decode() if isinstance(place, bytes) else place
    if not place:
        raise click.ClickException("the server copies no history (its tier-url is empty): name the STORE")
    return str(place)


def _sids(url: str) -> Callable[[bytes], int]:
    with needs("tidelog history", "history"):
        from tidelog.history.location import tmanifest

    def sid_of(name: bytes) -> int:
        with connected(url) as client:
            try:
                return int(client.together(tmanifest(name.decode(errors="surrogateescape")))[0].sid)
            except ReplyError:
                return 0

    return sid_of
