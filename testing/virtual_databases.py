"""Databases on a virtual disk, which a crash keeps, loses, or replaces by older copies.

They are caches that the product can build again, so that all of this may happen to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

from odradek.seams.databases import Databases
from odradek.testing.power import Power

COPIES_MAX = 40
"""Contents of each database that a crash can bring back."""


class CrashedDatabase(Enum):
    KEPT = "kept"
    LOST = "lost"
    OLDER_COPY = "replaced by an older copy"


class VirtualDatabases:
    """The databases of a disk. They outlive the node that uses them."""

    def __init__(self) -> None:
        self.on_store: Callable[[str, bytes], None] | None = None
        """Called with the path and content of each transaction."""
        self._contents: dict[str, list[bytes]] = {}
        """By path; the newest content is the last one."""

    def of_node(self, power: Power) -> Databases:
        return _NodeDatabases(self, power)

    def crash(self, chance: random.Random) -> dict[str, CrashedDatabase]:
        """Draw for each database what a crash does to it."""
        outcomes: dict[str, CrashedDatabase] = {}
        for path in sorted(self._contents):
            contents = self._contents[path]
            outcome = chance.choice(list(CrashedDatabase))
            if outcome is CrashedDatabase.LOST:
                del self._contents[path]
            elif outcome is CrashedDatabase.OLDER_COPY:
                del contents[chance.randrange(max(len(contents) - 1, 1)) + 1 :]
            outcomes[path] = outcome
        return outcomes

    def load(self, path: str) -> bytes | None:
        contents = self._contents.get(path)
        return contents[-1] if contents else None

    def store(self, path: str, content: bytes) -> None:
        contents = self._contents.setdefault(path, [])
        contents.append(content)
        del contents[:-COPIES_MAX]
        if self.on_store is not None:
            self.on_store(path, content)

    def remove(self, path: str) -> None:
        self._contents.pop(path, None)


class _NodeDatabases:
    """The databases as one node uses them, while it has power."""

    def __init__(self, databases: VirtualDatabases, power: Power) -> None:
        self._databases = databases
        self._power = power

    def load(self, path: str) -> bytes | None:
        self._power.check()
        return self._databases.load(path)

    def store(self, path: str, content: bytes) -> None:
        self._power.check()
        self._databases.store(path, content)

    def remove(self, path: str) -> None:
        self._power.check()
        self._databases.remove(path)
