"""A bounded pool of file descriptors and maps, lent to any number of logical handles.

A `Descriptor` is a path that is opened when first used and closed when others need its place. Two
lists in order of last use, one of open descriptors and one of maps (CPython's `mmap` keeps a
duplicate of the descriptor, so a map costs one too), have a bound each; over it the oldest idle one
goes. Invariants, all under the pool's one lock, which is never held across a system call that can
wait:

- a descriptor in use by any thread (`borrow` … `give_back`) is never closed: its number could be
  another file's by the time the kernel sees it;
- what is anchored (its name is gone, and somebody has pinned it) keeps its descriptor, as nothing
  could open it again;
- a map that somebody holds a view of is never dropped;
- what the kernel says when a descriptor is closed (a network's file system writes back then) is for the
  next `sync` of that file, and not for whoever needed the place, or was the last to hold a pin.

So the bounds can be passed, by as many as are busy or anchored at once; then the kernel's limit
decides, and EMFILE is `OutOfDescriptors`.
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
    """How many descriptors this process may have, after raising the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # macOS says "unlimited" and then refuses; the soft limit stands
    return _OPEN_MAX_WHERE_UNLIMITED if soft == resource.RLIM_INFINITY else soft


@value_class
class PoolStatistics:
    open_files: int
    maps: int
    pinned_files: int
    evicted_files: int
    """Descriptors closed to make room, since the start."""
    evicted_maps: int


class DescriptorPool:
    def __init__(self, max_open: int | None = None) -> None:
        """`max_open`: descriptors of files and maps together; by default half the process's limit,
        the other half being for sockets."""
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
        """A descriptor of the caller's own. OutOfDescriptors when even eviction makes no room."""
        return self.call(partial(os.open, name, flags, mode), name)

    def call(self, use: Callable[[], T], name: str) -> T:
        """What `use`, which takes descriptors for `name`, comes to; it is called twice where there are too
        few. OutOfDescriptors when even eviction makes no room."""
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
        """Give back the longest unused quarter of everything idle."""
        with self.lock:
            doomed = self._shed_files(len(self.files) - len(self.files) // 4 - 1)
            self._shed_maps(len(self.maps) - len(self.maps) // 4 - 1)
        _close_all(doomed)

    def install(self, holder: Descriptor, fd: int, *, borrowed: bool) -> int:
        """Give `holder` its descriptor, unless a quicker thread has; the one to use."""
        doomed: list[_Doomed] = []
        with self.lock:
            if holder.fd >= 0:
                doomed.append((holder, fd))
            elif holder.closed and not holder.pin_count:
                doomed.append((holder, fd))
                holder.fd = -1
            else:
                holder.fd = fd
                self.files[holder] = None
            if holder.fd >= 0:
                self.files.move_to_end(holder)
                holder.busy += 1  # so that it is not the one to go
                doomed += self._shed_files(self.files_max)
                if not borrowed:
                    holder.busy -= 1
            installed = holder.fd
        _close_all(doomed)
        if installed < 0:
            raise ValueError(f"{holder.name} was closed")
        return installed

    def install_map(self, holder: Descriptor, new: mmap.mmap) -> None:
        """Caller holds the lock."""
        if holder.view is not None:  # too small a one; a view still held keeps it alive
            holder.view.release()
        holder.map = new
        holder.view = memoryview(new)
        self.maps[holder] = None
        self.maps.move_to_end(holder)
        self._shed_maps(self.maps_max, keep=holder)

    def _shed_files(self, bound: int) -> list[_Doomed]:
        """Descriptors to close, taken from the oldest idle holders over `bound`. Under the lock."""
        excess = len(self.files) - max(0, bound)
        if excess <= 0:
            return []
        idle = []
        for holder in self.files:
            if not holder.busy and not holder.anchored:
                idle.append(holder)
                if len(idle) == excess:
                    break
        doomed = []
        for holder in idle:
            del self.files[holder]
            doomed.append((holder, holder.fd))
            holder.fd = -1
        self._evicted_files += len(doomed)
        return doomed

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
        # Files dropped without close, together with the pool: descriptors are plain numbers.
        _close_all([(holder, holder.fd) for holder in getattr(self, "files", ())])


class Descriptor:
    """A path with a descriptor now and then. Its fields belong to the pool's lock."""

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
        """Of a descriptor that it had; what was written through that may be lost."""
        self.map: mmap.mmap | None = None
        self.view: memoryview | None = None

    def borrow(self) -> int:
        """The descriptor, the caller's until `give_back`; opened if it is not.

        For the seams alone: this is how the TCP seam gets at a file to `sendfile` from. Raises
        OSError of the opening, OutOfDescriptors, or ValueError once closed.
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
                continue  # renamed meanwhile: it is open, or has another name
            return pool.install(self, opened, borrowed=True)

    def _is_still_at(self, name: str) -> bool:
        with self.pool.lock:
            return self.fd < 0 and self.name == name

    def give_back(self) -> None:
        with self.pool.lock:
            self.busy -= 1
            if not self.closed:
                return
            doomed = self._take_if_done()
        _close_all(doomed)

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
            doomed = self._take_if_done()
        _close_all(doomed)

    @property
    def pins(self) -> int:
        return self.pin_count

    def close(self) -> None:
        with self.pool.lock:
            self.closed = True
            doomed = self._take_if_done()
        _close_all(doomed)

    def moved(self, path: Path) -> None:
        with self.pool.lock:
            self.path_now = path
            self.name = str(path)

    def anchor(self) -> None:
        """Hold the descriptor until unpinned: the name is about to go. Nothing is to be held where the last
        pin of a closed handle goes meanwhile. Raises OSError of the opening."""
        try:
            self.borrow()
        except ValueError:
            return
        with self.pool.lock:
            self.anchored = self.pin_count > 0
        self.give_back()

    def drop_map(self) -> bool:
        """Whether there is no map (any more): not while a view of it is held. Under the lock."""
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

    def _take_if_done(self) -> list[_Doomed]:
        """What to close once closed, unpinned and idle. Under the lock."""
        if not self.closed or self.pin_count or self.busy:
            return []
        self.drop_map()
        if self.fd < 0:
            return []
        self.pool.files.pop(self, None)
        fd, self.fd = self.fd, -1
        return [(self, fd)]


_Doomed = tuple[Descriptor, int]


def _close_all(doomed: list[_Doomed]) -> None:
    for holder, fd in doomed:
        try:
            os.close(fd)
        except OSError as error:  # Linux has closed it all the same
            log.error("%s could not be closed: %s", holder.name, error)
            holder.close_error = error
