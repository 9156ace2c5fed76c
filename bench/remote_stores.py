"""Opens the object stores of a measurement: a directory and, on request, an S3 server on the same disk."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.s3_server import running_s3_server


@dataclass(frozen=True)
class Store:
    """An object store for remote segments: URL and options."""

    title: str
    url: str
    options: Mapping[str, str]


def arguments_of(doc: str | None, *, mb: int, size_of: str, passes: str) -> argparse.ArgumentParser:
    """Return a parser for the directory, the stores, the size (default: `mb`) and the number of passes."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", help="where to measure (a temporary one)")
    parser.add_argument("--s3", action="store_true", help="on an S3 server, too")
    parser.add_argument("--mb", type=int, default=mb, help=f"the {size_of}'s size ({mb})")
    parser.add_argument("--passes", type=int, default=3, help=f"{passes} (3)")
    return parser


@contextmanager
def open_stores(chosen: argparse.Namespace) -> Iterator[tuple[Path, list[Store]]]:
    """Yield a directory for the measurement's files, and the stores. They are deleted at the end."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(dir=chosen.directory)
        directory = Path(stack.enter_context(temporary))
        stores = [Store("a directory", f"file://{directory}/store", {})]
        if chosen.s3:
            (directory / "s3").mkdir()
            server = stack.enter_context(running_s3_server(directory / "s3"))
            stores.append(Store("MinIO, on the same disk", server.new_store(), server.options))
        yield directory, stores
