"""Prevents kio from importing hypothesis.

Where hypothesis is installed, kio's phantom types import it to register strategies for tests, which costs a
broker 0.25 s and 60 MB at start. Every module that may be the first to import kio imports this module before.
A process that has already imported hypothesis is not affected.
"""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # `import hypothesis` now fails
    try:
        import kio.static._phantom
    finally:
        del sys.modules["hypothesis"]

import kio.static._phantom  # noqa: F401
