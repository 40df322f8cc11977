"""The next steps: what a user can try with the sample data of ``tidelog quickstart``, which alone has this page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelog.console.pages.site import ConsoleSite

PATH: Final = "/next-steps"


@dataclass(frozen=True)
class NextSteps:
    """What the page says about the quickstart."""

    url: str  # of the server
    directory: str  # of the data, as a word for a shell; empty: it is removed at the end


def routes(site: ConsoleSite, about: NextSteps) -> Sequence[web.RouteDef]:
    """Return the route of the page."""
    # The option is also necessary for the default port: TIDELOG_URL of a user may name another server.
    values = {"about": about, "option": f" --url {about.url}", "cli": f"redis-cli {site.cli_options}".strip()}

    async def show(request: web.Request) -> web.Response:
        return site.page(request, "nextsteps.html", **values)

    return [web.get(PATH, show)]
