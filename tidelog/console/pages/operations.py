"""Operations that change a program: one connection of the user each, and one line in the audit log."""

from __future__ import annotations

from typing import Any

import redis
from aiohttp import web

from tidelog.client.steps import Steps, arun
from tidelog.console.audit import DONE
from tidelog.console.errors import PageError, UnavailableError
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.options.start import StartPosition
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.errors import ReplyError, message_of


def start_of(words: str) -> StartPosition:
    """Return the position that a user means. Raises PageError."""
    try:
        return StartPosition(words.strip())
    except ValueError as error:
        raise PageError(400, str(error).removeprefix("start ")) from None


async def operate(
    site: ConsoleSite, request: web.Request, action: str, target: str, steps: Steps[Any],
    errors: tuple[type[Exception], ...], **detail: Any,
) -> tuple[Any, str]:  # fmt: skip
    """Drive an operation. Returns its result and an empty text, or None and the error.

    errors: those of the operation itself, whose texts are for users. Raises UnavailableError if the connection is lost:
    the operation may have been executed, in part.
    """
    session = session_of(request)
    connection = await session.connection.open_another()
    result, problem = None, "the operation failed"
    try:
        result = await arun(connection, steps)
        problem = ""
    except LostError as error:
        problem = f"{error}. The change may have been executed, completely or in part."
        raise UnavailableError(problem) from None
    except (redis.ResponseError, ReplyError) as error:
        problem = message_of(error)
    except errors as error:
        problem = str(error)
    finally:
        connection.close()
        site.audit.write(session.user, session.address, action, target, problem or DONE, **detail)
    return result, problem
