"""A bounded pool of file descriptors and maps that any number of logical handles share.

A `Descriptor` is a path that is opened when it is first used and closed when the pool needs the descriptor.
Open descriptors and maps are in two LRU lists with a bound each. (CPython's `mmap` duplicates the descriptor, so
a map needs one too.) Above the bound, the least recently used idle one is closed. The following invariants hold
under the pool's lock, which is never held during a system call that can block:

- A descriptor that a thread uses (`borrow` … `give_back`) is not closed, because its number could be
  reused for another file.
- An anchored descriptor (pinned, and its name was removed) is not closed, because it could not be opened again.
- A map with a view is not dropped.
- An error of closing a descriptor (network file systems write back then) is raised by the next `File.sync` of that
  file, not by the caller whose request closed it.

The bounds can therefore be exceeded by the descriptors that are in use or anchored. Then the kernel's limit
applies, and EMFILE is raised as `OutOfDescriptors`.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.values import value_class

T = TypeVar("T")

log = logging.getLogger("odradek.files")

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
_MAPS_MAX = 16_384  # a quarter of the kernel's usual vm.max_map_count
_FILES_MAX = 65_536
_OPEN_MAX_WHERE_UNLIMITED = 10_240


def descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # macOS reports "unlimited" and refuses it; keep the soft limit
    return _OPEN_MAX_WHERE_UNLIMITED if soft == resource.RLIM_INFINITY else soft


@value_class
class PoolStatistics:
    open_files: int
    maps: int
    pinned_files: int
    evicted_files: int
    """Descriptors that were closed because of the bounds, since the start."""
    evicted_maps: int


class DescriptorPool:
    def __init__(self, max_open: int | None = None) -> None:
        """Create a pool for `max_open` descriptors of files and maps together.

        The default is half of the process's limit; the other half is for sockets.
        """
        budget = descriptor_limit() // 2 if max_open is None else max_open
        if budget < 2:
            raise ValueError("a pool needs a descriptor for a file and one for a map")
        self.maps_max = min(max(1, budget // 3), _MAPS_MAX)
        self.files_max = min(budget - self.maps_max, _FILES_MAX)
        self.lock = threading.Lock()
        self.files: OrderedDict[Descriptor, None] = OrderedDict()
        self.maps: OrderedDict[Descriptor, None] = OrderedDict()
        self.pinned: set[Descriptor] = set()
        self._evicted_files = 0
        self._evicted_maps = 0

    def statistics(self) -> PoolStatistics:
        with self.lock:
            return PoolStatistics(
                len(self.files),
                len(self.maps),
                len(self.pinned),
                self._evicted_files,
                self._evicted_maps,
            )

    def open_path(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Open a descriptor that the caller owns. Raises OutOfDescriptors if none can be evicted."""
        return self.call(partial(os.open, name, flags, mode), name)

    def call(self, use: Callable[[], T], name: str) -> T:
        """Call `use`, which opens descriptors for `name`; evict descriptors and call it again if there are too few.

        Raises OutOfDescriptors if none can be evicted.
        """
        try:
            return use()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
        self.relieve()
        try:
            return use()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            raise OutOfDescriptors(error.errno, error.strerror, name) from None

    def relieve(self) -> None:
        """Close the least recently used quarter of the idle descriptors."""
        with self.lock:
            to_close = self._shed_files(len(self.files) - len(self.files) // 4 - 1)
            self._shed_maps(len(self.maps) - len(self.maps) // 4 - 1)
        _close_all(to_close)

    def install(self, holder: Descriptor, fd: int, *, borrowed: bool) -> int:
        """Install a descriptor unless another thread has; return the one to use."""
        to_close: list[_OpenDescriptor] = []
        with self.lock:
            if holder.fd >= 0:
                to_close.append((holder, fd))
            elif holder.closed and not holder.pin_count:
                to_close.append((holder, fd))
                holder.fd = -1
            else:
                holder.fd = fd
                self.files[holder] = None
            if holder.fd >= 0:
                self.files.move_to_end(holder)
                holder.busy += 1  # so that it is not evicted
                to_close += self._shed_files(self.files_max)
                if not borrowed:
                    holder.busy -= 1
            installed = holder.fd
        _close_all(to_close)
        if installed < 0:
            raise ValueError(f"{holder.name} was closed")
        return installed

    def install_map(self, holder: Descriptor, new: mmap.mmap) -> None:
        """Install a new map. The caller holds the lock."""
        if holder.view is not None:  # the old map is too small; existing views keep it alive
            holder.view.release()
        holder.map = new
        holder.view = memoryview(new)
        self.maps[holder] = None
        self.maps.move_to_end(holder)
        self._shed_maps(self.maps_max, keep=holder)

    def _shed_files(self, bound: int) -> list[_OpenDescriptor]:
        """Take descriptors to close from the least recently used idle holders above `bound`. Holds the lock."""
        excess = len(self.files) - max(0, bound)
        if excess <= 0:
            return []
        idle = []
        for holder in self.files:
            if not holder.busy and not holder.anchored:
                idle.append(holder)
                if len(idle) == excess:
                    break
        to_close = []
        for holder in idle:
            del self.files[holder]
            to_close.append((holder, holder.fd))
            holder.fd = -1
        self._evicted_files += len(to_close)
        return to_close

    def _shed_maps(self, bound: int, keep: Descriptor | None = None) -> None:
        excess = len(self.maps) - max(0, bound)
        if excess <= 0:
            return
        for holder in list(self.maps):
            if holder is not keep and holder.drop_map():
                self._evicted_maps += 1
                excess -= 1
                if not excess:
                    return

    def __del__(self) -> None:
        # Files that were not closed are dropped with the pool: descriptors are plain numbers.
        _close_all([(holder, holder.fd) for holder in getattr(self, "files", ())])


class Descriptor:
    """A path that has a descriptor while it is needed. The pool's lock protects its fields."""

    __slots__ = (
        "anchored",
        "busy",
        "close_error",
        "closed",
        "fd",
        "flags",
        "map",
        "name",
        "path_now",
        "pin_count",
        "pool",
        "view",
    )

    def __init__(self, pool: DescriptorPool, path: Path, flags: int) -> None:
        self.pool = pool
        self.path_now = path
        self.name = str(path)
        self.flags = flags
        self.fd = -1
        self.busy = 0
        self.pin_count = 0
        self.anchored = False
        self.closed = False
        self.close_error: OSError | None = None
        """Error of closing an earlier descriptor; data written through it may be lost."""
        self.map: mmap.mmap | None = None
        self.view: memoryview | None = None

    def borrow(self) -> int:
        """Return the descriptor for use until `give_back`; open it if necessary.

        Only seams call this, for example the TCP seam for sendfile(2). Raises OSError if opening fails,
        OutOfDescriptors, or ValueError after `close`.
        """
        pool = self.pool
        while True:
            with pool.lock:
                fd, name = self.fd, self.name
                if fd >= 0:
                    self.busy += 1
                    pool.files.move_to_end(self)
                    return fd
            if self.closed and not self.pin_count:
                raise ValueError(f"{name} is closed")
            try:
                opened = pool.open_path(name, self.flags)
            except FileNotFoundError:
                if self._is_still_at(name):
                    raise
                continue  # it was renamed, so it is open or has another name
            return pool.install(self, opened, borrowed=True)

    def _is_still_at(self, name: str) -> bool:
        with self.pool.lock:
            return self.fd < 0 and self.name == name

    def give_back(self) -> None:
        with self.pool.lock:
            self.busy -= 1
            if not self.closed:
                return
            to_close = self._take_if_done()
        _close_all(to_close)

    def pin(self) -> None:
        with self.pool.lock:
            if self.closed and not self.pin_count:
                raise ValueError(f"{self.name} is closed")
            self.pin_count += 1
            self.pool.pinned.add(self)

    def unpin(self) -> None:
        with self.pool.lock:
            if not self.pin_count:
                raise ValueError(f"{self.name} is not pinned")
            self.pin_count -= 1
            if self.pin_count:
                return
            self.pool.pinned.discard(self)
            self.anchored = False
            if not self.closed:
                return
            to_close = self._take_if_done()
        _close_all(to_close)

    @property
    def pins(self) -> int:
        return self.pin_count

    def close(self) -> None:
        with self.pool.lock:
            self.closed = True
            to_close = self._take_if_done()
        _close_all(to_close)

    def moved(self, path: Path) -> None:
        with self.pool.lock:
            self.path_now = path
            self.name = str(path)

    def anchor(self) -> None:
        """Keep the descriptor open until it is unpinned, because the name will be removed.

        Does nothing if the last pin of a closed handle is released in the meantime. Raises OSError if opening fails.
        """
        try:
            self.borrow()
        except ValueError:
            return
        with self.pool.lock:
            self.anchored = self.pin_count > 0
        self.give_back()

    def drop_map(self) -> bool:
        """Drop the map unless a view of it exists; return whether there is no map. The caller holds the lock."""
        if self.map is None or self.view is None:
            return True
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            self.view = memoryview(self.map)
            return False
        self.map = self.view = None
        del self.pool.maps[self]
        return True

    def _take_if_done(self) -> list[_OpenDescriptor]:
        """Take the descriptor to close if the handle is closed, unpinned and idle. The caller holds the lock."""
        if not self.closed or self.pin_count or self.busy:
            return []
        self.drop_map()
        if self.fd < 0:
            return []
        self.pool.files.pop(self, None)
        fd, self.fd = self.fd, -1
        return [(self, fd)]


_OpenDescriptor = tuple[Descriptor, int]


def _close_all(to_close: list[_OpenDescriptor]) -> None:
    for holder, fd in to_close:
        try:
            os.close(fd)
        except OSError as error:  # Linux closes the descriptor despite the error
            log.error("%s could not be closed: %s", holder.name, error)
            holder.close_error = error
