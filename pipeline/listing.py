"""Many directories of a store listed at once, a page of each at a time: a listing of the whole store would ask
for one page after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from odradek.seams.objects import ObjectInfo, Objects

AT_ONCE = 32
"""Directories, of each of which a page is kept until it is taken."""

Page = Sequence[ObjectInfo]


def pages_of(objects: Objects, directories: Iterable[str]) -> Iterator[tuple[str, Page | None]]:
    """Pages as they come, each directory's in order, and None behind its last one. Raises what the store
    raises."""
    left = iter(directories)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="odradek-list") as pool:
        coming: dict[Future[Page | None], tuple[str, Iterator[Page]]] = {}

        def begin(count: int) -> None:
            for name in islice(left, count):
                pages = objects.pages(name)
                coming[pool.submit(next, pages, None)] = name, pages

        begin(AT_ONCE)
        while coming:
            done, _ = wait(coming, return_when=FIRST_COMPLETED)
            for each in done:
                name, pages = coming.pop(each)
                page = each.result()
                if page is None:
                    begin(1)
                else:
                    coming[pool.submit(next, pages, None)] = name, pages
                yield name, page
