"""Runs asyncio coroutines from tests whose own thread belongs to trio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


TIMEOUT_S = 30.0


def on_asyncio(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on asyncio in another thread, because the test's thread runs trio (pytest-trio);
    returns the result.
    """
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(asyncio.wait_for(main, TIMEOUT_S)))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]  # type: ignore[no-any-return]
