"""Object cache: ranges, limit of bytes, order of removal."""

from __future__ import annotations

import random

from odradek.storage.diskless.object_cache import RANGE_OVERHEAD_BYTES, ObjectCache

KIB = 1 << 10


def test_get_range_returns_bytes_of_whole_object_and_ranges() -> None:
    cache = ObjectCache(1 << 20)
    cache.put("a", b"0123456789")
    cache.put_range("b", 100, b"abcdef")
    assert bytes(cache.get_range("a", 2, 3) or b"") == b"234"
    assert bytes(cache.get_range("b", 102, 4) or b"") == b"cdef"
    assert cache.get_range("b", 99, 2) is None
    assert cache.get_range("b", 104, 3) is None
    assert cache.get_range("c", 0, 1) is None
    assert (cache.hits, cache.misses) == (2, 3)


def test_least_recently_used_range_is_removed_first() -> None:
    cache = ObjectCache(3 * (KIB + RANGE_OVERHEAD_BYTES))
    for key in "abc":
        cache.put(key, bytes(KIB))
    assert cache.get_range("a", 0, 1) is not None
    cache.put("d", bytes(KIB))
    assert [key for key in "abcd" if cache.contains(key, 0, 1)] == ["a", "c", "d"]


def test_range_larger_than_half_of_the_cache_is_not_kept() -> None:
    cache = ObjectCache(4 * KIB)
    cache.put("small", bytes(KIB))
    read = cache.put_range("large", 0, bytes(2 * KIB))
    assert bytes(read.view(0, 3)) == bytes(3)
    assert not cache.contains("large", 0, 1)
    assert cache.contains("small", 0, KIB)


def test_forget_removes_all_ranges_of_an_object() -> None:
    cache = ObjectCache(1 << 20)
    cache.put_range("a", 0, bytes(10))
    cache.put_range("a", 20, bytes(10))
    cache.put("b", bytes(10))
    cache.forget("a")
    cache.forget("a")
    assert len(cache) == 1
    assert cache.size_bytes == 10 + RANGE_OVERHEAD_BYTES


def test_only_checked_batches_of_a_range_are_known_to_be_correct() -> None:
    cache = ObjectCache(1 << 20)
    cache.put("own", bytes(10))
    read = cache.put_range("read", 0, bytes(10))
    read.set_checked(5)
    own = cache.find("own", 0, 10)
    assert own is not None
    assert own.is_checked(3)
    assert read.is_checked(5)
    assert not read.is_checked(3)


def test_random_operations_return_right_bytes_within_the_limit() -> None:
    rng = random.Random(45)
    objects = {f"object-{number}": rng.randbytes(4 * KIB) for number in range(12)}
    cache = ObjectCache(20 * KIB)
    for _ in range(20_000):
        key = rng.choice(list(objects))
        start = rng.randrange(4 * KIB)
        size = rng.randrange(1, 4 * KIB - start + 1)
        match rng.randrange(20):
            case 0:
                cache.put(key, objects[key])
            case 1 | 2 | 3:
                cache.put_range(key, start, objects[key][start : start + size])
            case 4:
                cache.forget(key)
            case _:
                found = cache.get_range(key, start, size)
                assert found is None or bytes(found) == objects[key][start : start + size]
        assert cache.size_bytes <= 20 * KIB
    assert cache.hits > 500
