"""`odradek` and `python -m odradek.cli`: the command line (see `cli/main.py`)."""

from __future__ import annotations

import sys

from odradek.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
