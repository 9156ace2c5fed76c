"""`Files` of a node on a `VirtualDisk`; they can crash at any sync, write or change of names.

They are stricter than real files where real files succeed by chance. A handle that is not pinned
behaves as if its descriptor had been evicted just before each call: if its file was removed, or
renamed without `File.moved`, the call fails with ENOENT. Truncating a mapped file while a view is
held raises BufferError.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from odradek.seams.files import (
    Buffer,
    DiskUsage,
    FileSlice,
    OutOfDescriptors,
    Path,
    WouldBlock,
)
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_disk import (
    DirectoryNode,
    FileNode,
    Node,
    VirtualDisk,
    VirtualLock,
    disk_error,
)

NAME_CHANGES = frozenset({"create", "rename", "remove"})
CHANGES = NAME_CHANGES | {"write", "sync"}


@dataclass(eq=False)
class CrashPoint:
    """Cuts the power during one of these `operations` on the node's files, after `passes` of them.

    Of a write, `share` of the bytes are written; other operations have no effect.
    """

    operations: frozenset[str]
    passes: int = 0
    share: float = 0.0
    may_occur: Callable[[], bool] = lambda: True
    """Called when the crash is due, and at each later operation until it returns True."""
    has_occurred: bool = False

    def is_due(self, operation: str) -> bool:
        if self.has_occurred or operation not in self.operations:
            return False
        if self.passes:
            self.passes -= 1
            return False
        self.has_occurred = self.may_occur()
        return self.has_occurred


class VirtualFile:
    """A file handle; created by `VirtualFiles.open`."""

    def __init__(self, files: VirtualFiles, path: Path, node: FileNode, *, write: bool) -> None:
        self._files = files
        self._path = path
        self._node = node
        self._writable = write
        self._size = len(node.content)
        self._pins = 0
        self._reachable = False  # whether the file existed when the pin that is held was taken
        self._closed = False
        # Path, number of renamings, and whether the file existed then
        self._seen = (path, -1, False)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def pins(self) -> int:
        return self._pins

    def append_v(self, parts: Sequence[Buffer]) -> int:
        self._enter("write")
        position = end = self._size
        for part in parts:
            self._write(end, part)
            end += len(part)
        self._size = end
        return position

    def append_slice(self, part: FileSlice) -> int:
        data = part.read()
        self.append_v([data])
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        self._enter("write")
        self._write(position, data)
        self._size = max(self._size, position + len(data))

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> bytes:
        self._enter("read")
        if nowait and self._would_block():
            raise WouldBlock
        self._node.cold = False
        return bytes(memoryview(self._node.content)[position : position + size])

    def is_in_memory(self, position: int, size: int) -> bool:
        self._enter("read")
        return not self._would_block()

    def _would_block(self) -> bool:
        return self._node.cold or self._files.disk.is_slow

    def map_read(self, size: int) -> memoryview:
        self._enter("read")
        if not 0 <= size <= self._size:
            raise ValueError(f"a map of {size} bytes of {self._path}, which has {self._size}")
        return memoryview(self._node.content).toreadonly()[:size]

    def unmap(self) -> None:
        self._files.power.check()
        if self._node.has_views():
            raise BufferError(f"a view of the map of {self._path} is still held")

    def sync(self) -> None:
        # A read-only descriptor is enough: fsync applies to the file.
        try:
            self._enter("sync")
        except OutOfDescriptors:
            raise  # nothing was synced
        except OSError:
            self._node.sync_failed()
            raise
        self._files.begin_sync()
        self._node.sync()
        self._files.end_sync()

    def write_out(self, position: int, size: int, *, wait: bool) -> None:
        self._enter("sync")

    def truncate(self, size: int) -> None:
        self._enter("write")
        if size > self._size:
            raise ValueError(f"truncating {self._path} to {size} would grow it from {self._size}")
        self.unmap()
        self._files.check_crash_point("write")
        if size < len(self._node.content):
            self._node.resize(size)
        self._size = size

    def preallocate(self, size: int) -> None:
        self._enter("write")
        if size <= self._size:
            return
        if size - len(self._node.content) > self._node.mount.free_bytes:
            self._node.mount.refused += 1
            raise self._files.disk.refusal(errno.ENOSPC, self._path)
        self._files.check_crash_point("write")
        if size > len(self._node.content):
            self._node.resize(size)
        self._size = size

    def moved(self, path: Path) -> None:
        self._files.power.check()
        self._path = path

    def pin(self) -> None:
        self._files.power.check()
        if self._closed and not self._pins:
            raise ValueError(f"{self._path} is closed")
        if not self._pins:
            self._reachable = self._is_there()
        self._pins += 1

    def unpin(self) -> None:
        self._files.power.check()
        if not self._pins:
            raise ValueError(f"{self._path} is not pinned")
        self._pins -= 1

    def close(self) -> None:
        self._files.power.check()
        self._closed = True

    def _enter(self, operation: str) -> None:
        self._files.power.check()
        if self._closed and not self._pins:
            raise ValueError(f"{self._path} is closed")
        if operation == "write" and not self._writable:
            raise disk_error(errno.EBADF, self._path)
        self._files.disk.check(operation, self._path)
        if not (self._pins and self._reachable) and not self._is_there():
            raise disk_error(errno.ENOENT, self._path)

    def _is_there(self) -> bool:
        disk, (path, renamings, is_there) = self._files.disk, self._seen
        # Other threads may change both meanwhile
        path_now, renamings_now = (self._path, disk.renamings)
        if renamings != renamings_now or path is not path_now:
            try:
                is_there = disk.find(path_now) is self._node
            except OSError:
                is_there = False
            self._seen = (path_now, renamings_now, is_there)
        return is_there

    def _write(self, position: int, data: Buffer) -> None:
        crash_point = self._files.crash_point
        if crash_point is not None and crash_point.is_due("write"):
            self._node.write(position, memoryview(data)[: int(len(data) * crash_point.share)])
            self._files.crash()
        if self._node.write(position, data) < len(data):
            raise self._files.disk.refusal(errno.ENOSPC, self._path)


class VirtualFiles:
    def __init__(self, disk: VirtualDisk, power: Power | None = None) -> None:
        self.disk = disk
        self.power = power or Power()
        self.syncs = 0
        """Syncs of files and directories through this object."""
        self.crash_point: CrashPoint | None = None
        self._cut_at: int | None = None
        self._cut_after: int | None = None

    def cut_power_at(self, sync: int) -> None:
        """Cut the power when sync number `sync` (from 1) begins; that sync has no effect."""
        self._cut_at = sync

    def cut_power_after(self, sync: int) -> None:
        """Cut the power when sync number `sync` is complete; for 0, now."""
        self._cut_after = sync
        if sync <= self.syncs:
            self.power.cut()

    def begin_sync(self) -> None:
        if self._cut_at == self.syncs + 1:
            self.crash()
        self.check_crash_point("sync")

    def check_crash_point(self, operation: str) -> None:
        """Raise NodeCrashed if a crash is due at this operation."""
        if self.crash_point is not None and self.crash_point.is_due(operation):
            self.crash()

    def crash(self) -> NoReturn:
        self.power.cut()
        raise NodeCrashed

    def end_sync(self) -> None:
        self.syncs += 1
        if self._cut_after == self.syncs:
            self.power.cut()

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> VirtualFile:
        self._enter("create" if create else "open", path)
        if create:
            parent = self.disk.directory(path.parent)
            if path.name in parent.names:
                raise disk_error(errno.EEXIST, path)
            self.disk.put((parent, path.name, FileNode(parent.mount)))
        return VirtualFile(self, path, self.disk.file(path), write=write or create)

    def read(self, path: Path) -> bytes:
        self._enter("open", path)
        self._enter("read", path)
        return bytes(self.disk.file(path).content)

    def write_new(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.tmp")
        self.remove(temporary, missing_ok=True)
        fresh = self.open(temporary, create=True)
        try:
            fresh.append_v([data])
            fresh.sync()
        except OSError:
            with suppress(OSError):
                self.remove(temporary)
            raise
        fresh.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def exists(self, path: Path) -> bool:
        self._enter("stat", path)
        return self.disk.find(path) is not None

    def is_directory(self, path: Path) -> bool:
        self._enter("stat", path)
        return isinstance(self.disk.find(path), DirectoryNode)

    def file_size(self, path: Path) -> int:
        self._enter("stat", path)
        return len(self.disk.file(path).content)

    def list(self, path: Path) -> list[str]:
        self._enter("list", path)
        return sorted(self.disk.directory(path).names)

    def make_directory(self, path: Path) -> None:
        self.power.check()
        for place in [*reversed(path.parents), path]:
            found = self.disk.find(place)
            if found is None:
                self._enter("create", place)
                parent = self.disk.directory(place.parent)
                self.disk.put((parent, place.name, DirectoryNode(parent.mount)))
            elif isinstance(found, FileNode):
                raise disk_error(errno.EEXIST if place == path else errno.ENOTDIR, place)

    def rename(self, old: Path, new: Path) -> None:
        self._enter("rename", old)
        self._enter("rename", new)
        node = self.disk.node(old)
        source, target = self.disk.directory(old.parent), self.disk.directory(new.parent)
        if node.mount is not target.mount:
            raise disk_error(errno.EXDEV, new)
        if target.names.get(new.name) is not node:
            _check_replaceable(node, target.names.get(new.name), new)
            self.disk.put((source, old.name, None), (target, new.name, node))

    def remove(self, path: Path, *, missing_ok: bool = False) -> None:
        self._enter("remove", path)
        if self.disk.find(path) is None and missing_ok:
            return
        self.disk.file(path)
        self.disk.put((self.disk.directory(path.parent), path.name, None))

    def remove_tree(self, path: Path) -> None:
        self._enter("remove", path)
        for name, node in sorted(self.disk.directory(path).names.items()):
            if isinstance(node, DirectoryNode):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self.disk.put((self.disk.directory(path.parent), path.name, None))

    def sync_directory(self, path: Path) -> None:
        self._enter("sync", path)
        directory = self.disk.directory(path)
        self.begin_sync()
        directory.sync()
        self.end_sync()

    def lock(self, path: Path) -> VirtualLock:
        self._enter("lock", path)
        parent = self.disk.directory(path.parent)
        if path.name not in parent.names:
            self.disk.put((parent, path.name, FileNode(parent.mount)))
        node = self.disk.file(path)
        if any(lock.node is node and lock.power.on for lock in self.disk.locks):
            raise disk_error(errno.EAGAIN, path)
        lock = VirtualLock(self.disk, path, node, self.power)
        self.disk.locks.append(lock)
        return lock

    def disk_usage(self, path: Path) -> DiskUsage:
        self._enter("stat", path)
        mount = self.disk.node(path).mount
        return DiskUsage(mount.capacity_bytes, mount.free_bytes)

    def _enter(self, operation: str, path: Path) -> None:
        self.power.check()
        self.disk.check(operation, path)
        if operation in NAME_CHANGES:
            self.check_crash_point(operation)


def _check_replaceable(node: Node, there: Node | None, new: Path) -> None:
    """Raise the error of rename(2) if `node` cannot replace `there`."""
    if isinstance(node, DirectoryNode):
        if isinstance(there, FileNode):
            raise disk_error(errno.ENOTDIR, new)
        if there is not None and there.names:
            raise disk_error(errno.ENOTEMPTY, new)
    elif isinstance(there, DirectoryNode):
        raise disk_error(errno.EISDIR, new)
