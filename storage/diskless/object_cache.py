"""Cache of the bytes of WAL objects in memory, with a limit of bytes (KIP-1163).

The local writer puts whole objects, because the newest records are read first. The batch reader puts the ranges that it
has read from the store. Ranges that were not used for the longest time are removed first. An object never changes, so a
cached range is always valid; it is removed early only if its object is deleted.

Not thread-safe: all methods are called on the event loop.
"""

from __future__ import annotations

from odradek.seams.files import Buffer

RANGE_OVERHEAD_BYTES = 512
"""Memory of a cached range in addition to its bytes, so that many small ranges do not exceed the limit."""
SHARE_OF_ONE_RANGE = 2
"""A range may use at most one part in this many of the cache."""


class CachedRange:
    """The bytes of an object from `start` to `end`."""

    __slots__ = ("checked", "data", "end", "key", "start")

    def __init__(self, key: str, start: int, data: memoryview, *, is_checked: bool) -> None:
        self.key = key
        self.start = start
        self.end = start + len(data)
        self.data = data
        self.checked: set[int] | None = None if is_checked else set()
        """Byte offsets of the batches whose CRC is known to be correct; None: all are."""

    def is_checked(self, byte_offset: int) -> bool:
        """Whether the CRC of the batch at that byte of the object is known to be correct."""
        return self.checked is None or byte_offset in self.checked

    def set_checked(self, byte_offset: int) -> None:
        if self.checked is not None:
            self.checked.add(byte_offset)

    def view(self, start: int, size: int) -> memoryview:
        """The bytes [start, start + size) of the object, which are not copied."""
        at = start - self.start
        return self.data[at : at + size]


class ObjectCache:
    """Ranges of objects by object key; least recently used ranges are removed first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used: dict[CachedRange, None] = {}  # least recently used first
        self._by_key: dict[str, list[CachedRange]] = {}
        self.size_bytes = 0
        """Bytes in the cache, with the overhead of its ranges."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._used)

    def put(self, key: str, data: Buffer) -> None:
        """Add a whole object whose batches were validated before the upload. The data must not change any more."""
        self._add(CachedRange(key, 0, memoryview(data).toreadonly(), is_checked=True))

    def put_range(self, key: str, start: int, data: Buffer) -> CachedRange:
        """Add a range that was read from the store, and return it, whether it stays in the cache or not."""
        read = CachedRange(key, start, memoryview(data).toreadonly(), is_checked=False)
        self._add(read)
        return read

    def get_range(self, key: str, start: int, size: int) -> Buffer | None:
        """The bytes [start, start + size) of an object; None if they are not in the cache."""
        found = self.find(key, start, size)
        return None if found is None else found.view(start, size)

    def find(self, key: str, start: int, size: int) -> CachedRange | None:
        """Range that contains [start, start + size), which becomes the most recently used one."""
        for each in self._by_key.get(key, ()):
            if each.start <= start and start + size <= each.end:
                self.hits += 1
                del self._used[each]
                self._used[each] = None
                return each
        self.misses += 1
        return None

    def contains(self, key: str, start: int, size: int) -> bool:
        """Whether `get_range` would return the bytes. Does not count as a use."""
        return any(
            each.start <= start and start + size <= each.end for each in self._by_key.get(key, ())
        )

    def forget(self, key: str) -> None:
        """Remove all ranges of an object."""
        for each in self._by_key.get(key, [])[:]:
            self._remove(each)

    def _add(self, new: CachedRange) -> None:
        size_bytes = len(new.data) + RANGE_OVERHEAD_BYTES
        if not len(new.data) or size_bytes > self._max_bytes // SHARE_OF_ONE_RANGE:
            return
        ranges = self._by_key.setdefault(new.key, [])
        for each in ranges[:]:
            if each.start <= new.start and new.end <= each.end:
                return
            if new.start <= each.start and each.end <= new.end:
                self._remove(each)
        self._by_key.setdefault(new.key, []).append(new)
        self._used[new] = None
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes:
            self._remove(next(iter(self._used)))

    def _remove(self, removed: CachedRange) -> None:
        del self._used[removed]
        ranges = self._by_key[removed.key]
        ranges.remove(removed)
        if not ranges:
            del self._by_key[removed.key]
        self.size_bytes -= len(removed.data) + RANGE_OVERHEAD_BYTES
