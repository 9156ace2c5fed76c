"""Directories of a store are listed concurrently, each with the result of a separate listing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from threading import Barrier

import pytest

from odradek.pipeline.store import CONCURRENT_LISTINGS, list_directories
from odradek.seams.objects import ObjectInfo, ObjectsUnavailable
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind, VirtualObjectStore


class ConcurrentListings(VirtualObjectStore):
    """Store that responds only when `count` requests are in progress."""

    def __init__(self, count: int) -> None:
        super().__init__(page_objects=3)
        self._barrier = Barrier(count)

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        self._barrier.wait(10)
        yield from super().pages(prefix, after)


def filled(objects: VirtualObjectStore, directories: int) -> list[str]:
    names = [f"d{number}" for number in range(directories)]
    for number, name in enumerate(names):
        for key in range(number % 10):
            objects.put(f"{name}/{key}", [b""])
    return names


@pytest.mark.parametrize("directories", [0, 1, CONCURRENT_LISTINGS, 3 * CONCURRENT_LISTINGS])
def test_each_directory_is_listed_in_order_and_completed_once(directories: int) -> None:
    objects = VirtualObjectStore(page_objects=3)
    names = filled(objects, directories)
    found: dict[str, list[str]] = defaultdict(list)
    ended: list[str] = []
    for name, page in list_directories(objects, names):
        assert name not in ended
        if page is None:
            ended.append(name)
        else:
            found[name] += [each.key for each in page]
    assert sorted(ended) == sorted(names)
    for name in names:
        assert found[name] == [each.key for each in objects.list(name)]


def test_directories_are_listed_concurrently() -> None:
    objects = ConcurrentListings(CONCURRENT_LISTINGS)
    names = filled(objects, CONCURRENT_LISTINGS)
    assert sum(page is None for _, page in list_directories(objects, names)) == CONCURRENT_LISTINGS


def test_failed_listing_is_an_error_not_an_end() -> None:
    objects = VirtualObjectStore(page_objects=3)
    names = filled(objects, 50)
    objects.bucket.inject(StoreFault(StoreFaultKind.FAILS, after=60))
    with pytest.raises(ObjectsUnavailable):
        list(list_directories(objects, names))
