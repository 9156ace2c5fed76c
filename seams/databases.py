"""The Databases seam: contents of databases that a library reads and writes itself, such as SQLite.

The Files seam does not cover such a library. On real files there is no such seam: the library is used. In a simulation
the content of a database is one value, which is stored as a whole.
"""

from __future__ import annotations

from typing import Protocol


class Databases(Protocol):
    """Contents of databases by the paths that their files would have. Every call is one transaction."""

    def load(self, path: str) -> bytes | None:
        """Return the stored content; None if there is no database."""
        ...

    def store(self, path: str, content: bytes) -> None: ...

    def remove(self, path: str) -> None:
        """Remove the database if there is one."""
        ...
