"""A disk in memory that simulates what remains after a power cut.

Every file has its current content, its durable content, and the writes and resizes in between, in
order. Every directory has its current names, its durable names, and the changes in between. `sync`
of a file makes only its content durable; `sync` of a directory makes only its names durable: POSIX
guarantees no more. `crash(seed)` returns the disk that a node would find after a power cut, as the
seed decides:

- A write that was not synced is kept, lost, or torn: its first sectors are present, or any of them.
  Neither writes nor their sectors are ordered: later ones may be present without earlier ones, with
  zeros or old bytes in between.
- Changes of names are ordered within a directory: a prefix of them is present. A rename is present
  in both directories or in neither.
- Data of a failed sync is not made durable by a later successful sync: the kernel has marked the
  pages clean. This is why a failed sync must not be retried.

Assumptions: writing one sector is atomic, and a synced byte is never lost. The model is stricter
than real disks: of two writes to one sector, the later may be present without the earlier, though a
real sector has only states that it had at some time. Code that survives the model survives a real
disk.

Disks can be full (`mount` with a capacity), failing or read-only (`fail`), cold (`chill`, and after
a crash) and slow (`is_slow`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf

from odradek.seams.files import Buffer, OutOfDescriptors, Path
from odradek.testing.power import Power
from odradek.testing.virtual_databases import VirtualDatabases

SECTOR_BYTES = 512
UNLIMITED_BYTES = 1 << 40

MUTATIONS = frozenset({"create", "write", "sync", "rename", "remove", "lock"})
OPERATIONS = MUTATIONS | {"open", "read", "stat", "list"}


def disk_error(code: int, path: Path | str) -> OSError:
    kind = OutOfDescriptors if code in (errno.EMFILE, errno.ENFILE) else OSError
    return kind(code, os.strerror(code), str(path))


@dataclass(eq=False)
class Mount:
    """A file system: its files share its capacity, and renames out of it fail (EXDEV)."""

    capacity_bytes: int = UNLIMITED_BYTES
    used_bytes: int = 0
    refused: int = 0
    """Writes that failed because the file system was full."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)


@dataclass(eq=False)
class PendingWrite:
    """A change of a file's content that is not durable: bytes, or a new size (`data` is None)."""

    position: int
    data: bytes | None
    sync_failed_before: bool = False
    """Whether a sync of this change failed."""

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            _resize(content, self.position)
        else:
            _overwrite(content, self.position, self.data)

    def torn(self, rng: random.Random) -> list[PendingWrite]:
        """The part of the change that survives a power cut: nothing, first sectors, or any sectors."""
        if self.data is None:
            return rng.choice(([self], []))
        sectors = list(self._sectors(self.data))
        match rng.randrange(3):
            case 0:
                return []
            case 1:
                return sectors[: rng.randint(1, len(sectors))]
            case _:
                return [each for each in sectors if rng.random() < 0.5]

    def _sectors(self, data: bytes) -> Iterator[PendingWrite]:
        """Split the change into one change for each sector."""
        start, end = self.position, self.position + len(data)
        while start < end:
            next_start = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            yield PendingWrite(start, data[start - self.position : next_start - self.position])
            start = next_start


@dataclass(eq=False)
class FileNode:
    mount: Mount
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[PendingWrite] = field(default_factory=list)
    cold: bool = False

    def has_views(self) -> bool:
        try:
            self.content.append(0)
        except BufferError:
            return True
        del self.content[-1:]
        return False

    def write(self, position: int, data: Buffer) -> int:
        """Write as many of the bytes as the file system can hold; return their number."""
        size = len(data)
        beyond = position + size - len(self.content)
        if beyond > self.mount.free_bytes:
            size = max(0, size - (beyond - self.mount.free_bytes))
            self.mount.refused += 1
        if size:
            written = bytes(memoryview(data)[:size])
            self._extend(position + size)
            _overwrite(self.content, position, written)
            self.pending.append(PendingWrite(position, written))
        return size

    def resize(self, size: int) -> None:
        self._extend(size)
        self.mount.used_bytes += min(0, size - len(self.content))
        _resize(self.content, size)
        self.pending.append(PendingWrite(size, None))

    def _extend(self, size: int) -> None:
        grow = size - len(self.content)
        if grow > 0:
            self.mount.used_bytes += grow
            if self.has_views():  # mapped: a bytearray with views cannot grow
                self.content = bytearray(self.content)

    def sync(self) -> None:
        left = []
        for change in self.pending:
            if change.sync_failed_before:
                left.append(change)
            else:
                change.apply(self.durable)
        self.pending = left

    def sync_failed(self) -> None:
        for change in self.pending:
            change.sync_failed_before = True

    def crash(self, rng: random.Random, keep: float) -> None:
        for change in self.pending:
            kept = [change]
            if rng.random() >= keep:
                kept = change.torn(rng) if keep else []
            for part in kept:
                part.apply(self.durable)
        self.pending = []
        self.mount.used_bytes += len(self.durable)
        self.content = bytearray(self.durable)
        self.cold = True


@dataclass(eq=False)
class DirectoryNode:
    mount: Mount
    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def sync(self, up_to: int | None = None) -> None:
        """Make the names durable, or only the changes up to number `up_to`."""
        for renaming in list(self.pending):
            if up_to is not None and renaming.number > up_to:
                return
            for directory, _, _ in renaming.puts:
                if directory is not self:
                    directory.sync(renaming.number - 1)  # a journal commits in order
            renaming.commit()


Node = FileNode | DirectoryNode


@dataclass(eq=False)
class NameChange:
    """An atomic change of names: the new node of each name, or None."""

    number: int
    puts: list[tuple[DirectoryNode, str, Node | None]]

    def apply(self) -> None:
        for directory, name, node in self.puts:
            _put(directory.names, name, node)
            if self not in directory.pending:
                directory.pending.append(self)

    def commit(self) -> None:
        for directory, name, node in self.puts:
            _put(directory.durable, name, node)
            if self in directory.pending:
                directory.pending.remove(self)


@dataclass(eq=False)
class DiskFault:
    """An injected fault: `passes` calls succeed first, then `times` calls fail."""

    pattern: str
    error: int
    operations: frozenset[str]
    passes: int = 0
    times: float = inf
    failed: int = 0
    """The calls that this fault made fail."""

    def hits(self, operation: str, path: str) -> bool:
        if operation not in self.operations or not fnmatchcase(path, self.pattern):
            return False
        if self.passes:
            self.passes -= 1
            return False
        if self.failed >= self.times:
            return False
        self.failed += 1
        return True


class VirtualDisk:
    """The disk itself, which outlives the node that uses it through `VirtualFiles`."""

    def __init__(self) -> None:
        self.root = DirectoryNode(Mount())
        self.renamings = 0
        """The number of changes of names so far."""
        self.is_slow = False
        """Whether no file is ever in the page cache, even after a read."""
        self.calls = 0
        """The number of calls through the Files seam."""
        self.refused = 0
        """The number of calls that failed because of a fault or a full disk."""
        self.has_flipped_bits = False
        """Whether bits have flipped; set by the code that flips them."""
        self.databases = VirtualDatabases()
        self._faults: list[DiskFault] = []
        self.locks: list[VirtualLock] = []

    # Control of the disk by a test

    def mount(self, path: Path, capacity_bytes: int = UNLIMITED_BYTES) -> Mount:
        """Make `path` a separate file system, as log directories usually are.

        Set `capacity_bytes` of the result to fill it up, or to free space later.
        """
        parent = self.root
        for name in _names(path)[:-1]:
            node = parent.names.setdefault(name, DirectoryNode(parent.mount))
            parent.durable[name] = node
            if not isinstance(node, DirectoryNode):
                raise disk_error(errno.ENOTDIR, path)
            parent = node
        mount = Mount(capacity_bytes)
        self.renamings += 1
        parent.names[path.name] = parent.durable[path.name] = DirectoryNode(mount)
        return mount

    def mount_of(self, path: Path) -> Mount:
        """The file system of `path`; after a crash, that of the new disk."""
        return self.node(path).mount

    def fail(
        self,
        pattern: str,
        error: int = errno.EIO,
        operations: Collection[str] = OPERATIONS,
        *,
        passes: int = 0,
        times: float = inf,
    ) -> DiskFault:
        """Make calls on paths that match `pattern` (fnmatch; `*` matches slashes) fail with
        `error`.

        `passes` calls succeed first; then `times` calls fail.
        """
        unknown = set(operations) - OPERATIONS
        if unknown:
            raise ValueError(f"no such operations: {sorted(unknown)}")
        fault = DiskFault(pattern, error, frozenset(operations), passes, times)
        self._faults.append(fault)
        return fault

    def make_read_only(self, pattern: str) -> DiskFault:
        return self.fail(pattern, errno.EROFS, MUTATIONS)

    def heal(self, fault: DiskFault | None = None) -> None:
        """Remove one fault, or all of them."""
        self._faults = [f for f in self._faults if fault is not None and f is not fault]

    def chill(self, pattern: str = "*") -> None:
        """Remove files that match `pattern` from the page cache, until a blocking read of each."""
        for path, node in self.walk():
            if isinstance(node, FileNode) and fnmatchcase(path, pattern):
                node.cold = True

    def crash(self, seed: int) -> VirtualDisk:
        """Return the disk after a power cut: a new one without faults; this one does not change.

        Of the changes that were not synced, none are kept, or all, or an independent share of the
        names and of each file: a kernel writes files back one by one, and names at any time.
        """
        rng = random.Random(seed)
        everywhere = rng.choice((0.0, 1.0, None, None, None, None))
        keep = _share(rng, everywhere)
        image = VirtualDisk()
        image.calls, image.refused = self.calls, self.refused
        image.databases = self.databases
        image.has_flipped_bits = self.has_flipped_bits
        image.root, nodes = _copied((self.root, [node for _, node in self.everything()]))
        for directory in nodes:
            if isinstance(directory, DirectoryNode) and directory.pending:
                numbers = [renaming.number for renaming in directory.pending]
                kept = sum(rng.random() < keep for _ in numbers)
                if kept:
                    directory.sync(numbers[kept - 1])
        for mount in {id(node.mount): node.mount for node in nodes}.values():
            mount.used_bytes = 0
        _settle(image.root, rng, everywhere)
        return image

    # Operations of the Files seam

    def check(self, operation: str, path: Path | str) -> None:
        """Raise the error of the first fault that matches this call."""
        self.calls += 1
        for fault in self._faults:
            if fault.hits(operation, str(path)):
                raise self.refusal(fault.error, path)

    def refusal(self, error: int, path: Path | str) -> OSError:
        """Count a failed call that a healthy disk would have performed, and return its error."""
        self.refused += 1
        return disk_error(error, path)

    def find(self, path: Path) -> Node | None:
        """Return the node at `path`, or None. Raises NotADirectoryError below a file."""
        node: Node | None = self.root
        for name in _names(path):
            if not isinstance(node, DirectoryNode):
                raise disk_error(errno.ENOTDIR, path)
            node = node.names.get(name)
            if node is None:
                return None
        return node

    def node(self, path: Path) -> Node:
        found = self.find(path)
        if found is None:
            raise disk_error(errno.ENOENT, path)
        return found

    def directory(self, path: Path) -> DirectoryNode:
        found = self.node(path)
        if not isinstance(found, DirectoryNode):
            raise disk_error(errno.ENOTDIR, path)
        return found

    def file(self, path: Path) -> FileNode:
        found = self.node(path)
        if not isinstance(found, FileNode):
            raise disk_error(errno.EISDIR, path)
        return found

    def put(self, *puts: tuple[DirectoryNode, str, Node | None]) -> None:
        """Change names atomically; files that lose their name free their space."""
        stays = {id(node) for _, _, node in puts}
        for directory, name, _ in puts:
            old = directory.names.get(name)
            if isinstance(old, FileNode) and id(old) not in stays:
                old.mount.used_bytes -= len(old.content)
        NameChange(self.renamings + 1, list(puts)).apply()
        self.renamings += 1  # invalidates the lookups that other threads have cached

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every named file and directory, in the order of names."""
        yield from _walk("", self.root)

    def everything(self) -> Iterator[tuple[str, Node]]:
        """Every file and directory with a current, a durable or a pending name."""
        seen: set[int] = set()
        rest: list[tuple[str, Node]] = [("/", self.root)]
        while rest:
            path, node = rest.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield path, node
            if isinstance(node, DirectoryNode):
                known = [*node.names.items(), *node.durable.items()]
                for renaming in node.pending:
                    known += [(name, put) for _, name, put in renaming.puts if put is not None]
                rest += [(f"{path}/{name}", child) for name, child in known]

    def fingerprint(self) -> str:
        """A digest of all content and names, durable or not."""
        digest = hashlib.sha256()
        for path, node in self.everything():
            digest.update(f"{path}\0{node.mount.used_bytes}\0".encode())
            if isinstance(node, FileNode):
                digest.update(b"%d\0" % len(node.content) + node.content)
                digest.update(b"%d\0" % len(node.durable) + node.durable)
                for change in node.pending:
                    digest.update(f"{change.position}\0{change.data!r}\0".encode())
            else:
                digest.update(f"{list(node.names)}\0{list(node.durable)}\0".encode())
                digest.update(f"{[renaming.number for renaming in node.pending]}\0".encode())
        return digest.hexdigest()


def _copied(nodes: tuple[DirectoryNode, list[Node]]) -> tuple[DirectoryNode, list[Node]]:
    """Copy all reachable nodes. Uses pickle: deepcopy takes four times as long."""
    copied: tuple[DirectoryNode, list[Node]] = pickle.loads(pickle.dumps(nodes, protocol=5))
    return copied


def _share(rng: random.Random, everywhere: float | None) -> float:
    """The share of unsynced changes to keep: none or all in about one of three cases."""
    return min(max(rng.uniform(-0.25, 1.25), 0.0), 1.0) if everywhere is None else everywhere


def _settle(directory: DirectoryNode, rng: random.Random, everywhere: float | None) -> None:
    """Make the durable names and content of the tree its current ones."""
    directory.pending = []
    directory.names = dict(directory.durable)
    for _, node in sorted(directory.names.items()):
        if isinstance(node, DirectoryNode):
            _settle(node, rng, everywhere)
        else:
            node.crash(rng, _share(rng, everywhere))


def _walk(path: str, directory: DirectoryNode) -> Iterator[tuple[str, Node]]:
    for name, node in sorted(directory.names.items()):
        yield f"{path}/{name}", node
        if isinstance(node, DirectoryNode):
            yield from _walk(f"{path}/{name}", node)


def _names(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _overwrite(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        _resize(content, position)
    content[position : position + len(data)] = data


class VirtualLock:
    """A lock that is held until its release, or until the power of its holder is cut."""

    def __init__(self, disk: VirtualDisk, path: Path, node: FileNode, power: Power) -> None:
        self._disk = disk
        self._path = path
        self.node = node
        self.power = power

    def release(self) -> None:
        self.power.check()
        if self in self._disk.locks:
            self._disk.locks.remove(self)

    def check(self) -> None:
        self.power.check()
        self._disk.check("stat", self._path)
        self._disk.check("lock", self._path)
        if self._disk.node(self._path) is not self.node:
            raise disk_error(errno.ESTALE, self._path)
