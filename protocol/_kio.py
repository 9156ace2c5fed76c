"""Importing kio without hypothesis.

kio's phantom types import hypothesis wherever it is installed, to register strategies for tests.
That is 0.25 s and 60 MB that no broker wants in a development install, so whoever imports kio first
imports this module before it. Nothing is hidden from a process that has hypothesis loaded already.
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
