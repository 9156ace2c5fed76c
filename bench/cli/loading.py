"""Results files named on the command line."""

from __future__ import annotations

from pathlib import Path

from odradek.bench.results_file import InvalidResults, Results, load
from odradek.cli.errors import CommandFailed


def load_results(name: str) -> Results:
    """Raises CommandFailed with what is wrong with the file."""
    try:
        return load(Path(name))
    except InvalidResults as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{name} can't be read: {error.strerror or error}") from None
