"""A disk in memory that knows what a loss of power would leave of it.

Every file has its content as read now, and the content that is durable, with the writes and
resizings in between in order; every directory has its names now, and the durable ones, with the
changes of names in between. `sync` of a file makes its content durable and nothing else; `sync` of a
directory its names and nothing else: POSIX promises no more. `crash(seed)` gives the disk that a
node would find after a power cut, decided by the seed:

- a write that was not synced is kept, lost, or torn: its first sectors are there, or any of them. Neither
  writes nor their sectors wait for each other, so what is later may be there without what is earlier, zeros or
  old bytes between;
- names change in order within a directory: some prefix of the changes is there. A rename is there
  in both its directories or in neither;
- what a failed sync was to make durable is never made so by a later one that succeeds: the kernel
  took the pages for clean (so nobody retries a failed sync).

Assumed: a write's part of a sector is atomic, and a synced byte stays. Harder than disks are: of two writes to one
sector the later may be there without the earlier, though a disk has sectors only as they were at some time. What
endures that, endures a disk.

Disks can be full (`mount` with a capacity), failing or read-only (`fail`), cold (`chill`; after a crash
all is) and slow (`is_slow`).
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

SECTOR_BYTES = 512
UNLIMITED_BYTES = 1 << 40

MUTATIONS = frozenset({"create", "write", "sync", "rename", "remove", "lock"})
OPERATIONS = MUTATIONS | {"open", "read", "stat", "list"}


def disk_error(code: int, path: Path | str) -> OSError:
    kind = OutOfDescriptors if code in (errno.EMFILE, errno.ENFILE) else OSError
    return kind(code, os.strerror(code), str(path))


@dataclass(eq=False)
class Mount:
    """A file system: room is shared within it, and no rename leaves it (EXDEV)."""

    capacity_bytes: int = UNLIMITED_BYTES
    used_bytes: int = 0
    refused: int = 0
    """Writes for which there was no room."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)


@dataclass(eq=False)
class Change:
    """Of a file's content, not durable yet: bytes written, or a new size (`data` is None)."""

    position: int
    data: bytes | None
    doomed: bool = False
    """A sync of it failed."""

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            _resize(content, self.position)
        else:
            _overwrite(content, self.position, self.data)

    def torn(self, rng: random.Random) -> list[Change]:
        """What a power cut leaves of it: nothing, its first sectors, or any of them."""
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

    def _sectors(self, data: bytes) -> Iterator[Change]:
        """One for each sector that it touches."""
        start, end = self.position, self.position + len(data)
        while start < end:
            next_start = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            yield Change(start, data[start - self.position : next_start - self.position])
            start = next_start


@dataclass(eq=False)
class FileNode:
    mount: Mount
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    cold: bool = False

    def has_views(self) -> bool:
        try:
            self.content.append(0)
        except BufferError:
            return True
        del self.content[-1:]
        return False

    def write(self, position: int, data: Buffer) -> int:
        """As many of the bytes as there is room for; how many."""
        size = len(data)
        beyond = position + size - len(self.content)
        if beyond > self.mount.free_bytes:
            size = max(0, size - (beyond - self.mount.free_bytes))
            self.mount.refused += 1
        if size:
            written = bytes(memoryview(data)[:size])
            self._make_room(position + size)
            _overwrite(self.content, position, written)
            self.pending.append(Change(position, written))
        return size

    def resize(self, size: int) -> None:
        self._make_room(size)
        self.mount.used_bytes += min(0, size - len(self.content))
        _resize(self.content, size)
        self.pending.append(Change(size, None))

    def _make_room(self, size: int) -> None:
        grow = size - len(self.content)
        if grow > 0:
            self.mount.used_bytes += grow
            if self.has_views():  # a map of it: a bytearray cannot grow under one
                self.content = bytearray(self.content)

    def sync(self) -> None:
        left = []
        for change in self.pending:
            if change.doomed:
                left.append(change)
            else:
                change.apply(self.durable)
        self.pending = left

    def sync_failed(self) -> None:
        for change in self.pending:
            change.doomed = True

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
    pending: list[Renaming] = field(default_factory=list)

    def sync(self, up_to: int | None = None) -> None:
        """Make the names durable, or the changes numbered up to one."""
        for renaming in list(self.pending):
            if up_to is not None and renaming.number > up_to:
                return
            for directory, _, _ in renaming.puts:
                if directory is not self:
                    directory.sync(renaming.number - 1)  # a journal keeps its order
            renaming.commit()


Node = FileNode | DirectoryNode


@dataclass(eq=False)
class Renaming:
    """A change of names, whole or not at all: what each name stands for from now on."""

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
class Fault:
    """Calls that it has in store: `passes` go through first, then `times` fail, then it is over."""

    pattern: str
    error: int
    operations: frozenset[str]
    passes: int = 0
    times: float = inf
    failed: int = 0
    """Calls that failed by it."""

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
    """The medium: it outlives the node that writes to it. Doors to it are `VirtualFiles`."""

    def __init__(self) -> None:
        self.root = DirectoryNode(Mount())
        self.renamings = 0
        """Changes of names so far."""
        self.is_slow = False
        """Nothing of it is in memory, though it was read before."""
        self.calls = 0
        """That came through doors, of files and of directories."""
        self.refused = 0
        """Those that failed by a fault, or for want of room."""
        self.has_rotted = False
        """Bits of it have flipped; whoever flips them says so."""
        self._faults: list[Fault] = []
        self.locks: list[VirtualLock] = []

    # What a test does to it

    def mount(self, path: Path, capacity_bytes: int = UNLIMITED_BYTES) -> Mount:
        """Make `path` a file system of its own, as each log directory usually is. To make it full
        or to give it room later, set `capacity_bytes` of the result."""
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
        """The file system that `path` is on; in an image of a crash, its own."""
        return self.node(path).mount

    def fail(
        self,
        pattern: str,
        error: int = errno.EIO,
        operations: Collection[str] = OPERATIONS,
        *,
        passes: int = 0,
        times: float = inf,
    ) -> Fault:
        """Calls on paths like `pattern` (fnmatch; `*` crosses slashes) fail with `error`; so many of
        them, after so many that `passes` lets through."""
        unknown = set(operations) - OPERATIONS
        if unknown:
            raise ValueError(f"no such operations: {sorted(unknown)}")
        fault = Fault(pattern, error, frozenset(operations), passes, times)
        self._faults.append(fault)
        return fault

    def make_read_only(self, pattern: str) -> Fault:
        return self.fail(pattern, errno.EROFS, MUTATIONS)

    def heal(self, fault: Fault | None = None) -> None:
        """End one fault, or all."""
        self._faults = [f for f in self._faults if fault is not None and f is not fault]

    def chill(self, pattern: str = "*") -> None:
        """Files like `pattern` are out of the page cache until somebody waits for one."""
        for path, node in self.walk():
            if isinstance(node, FileNode) and fnmatchcase(path, pattern):
                node.cold = True

    def crash(self, seed: int) -> VirtualDisk:
        """The disk after a power cut now: a new one, healthy; this one stays as it is.

        Of what was not synced there is nothing, or all, or of the names and of each file a share of its own:
        a kernel writes back one file after the other, and names when it likes.
        """
        rng = random.Random(seed)
        everywhere = rng.choice((0.0, 1.0, None, None, None, None))
        keep = _share(rng, everywhere)
        image = VirtualDisk()
        image.calls, image.refused = self.calls, self.refused
        image.has_rotted = self.has_rotted
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

    # What a door does with it

    def check(self, operation: str, path: Path | str) -> None:
        """Raises what a fault has in store for this call."""
        self.calls += 1
        for fault in self._faults:
            if fault.hits(operation, str(path)):
                raise self.refusal(fault.error, path)

    def refusal(self, error: int, path: Path | str) -> OSError:
        """What a call fails with that another disk would have carried out."""
        self.refused += 1
        return disk_error(error, path)

    def find(self, path: Path) -> Node | None:
        """None where there is nothing. NotADirectoryError below a file."""
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
        """Change names, in one piece; files that lose theirs give back their room."""
        stays = {id(node) for _, _, node in puts}
        for directory, name, _ in puts:
            old = directory.names.get(name)
            if isinstance(old, FileNode) and id(old) not in stays:
                old.mount.used_bytes -= len(old.content)
        Renaming(self.renamings + 1, list(puts)).apply()
        self.renamings += 1  # what another thread found before is looked for again

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Everything that has a name now, in the order of names."""
        yield from _walk("", self.root)

    def everything(self) -> Iterator[tuple[str, Node]]:
        """Everything that has a name, a durable name, or is about to lose or get one."""
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
        """Changes with every byte and name, durable or not."""
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
    """All that they lead to, each once. Through pickle: `copy.deepcopy` takes four times as long."""
    copied: tuple[DirectoryNode, list[Node]] = pickle.loads(pickle.dumps(nodes, protocol=5))
    return copied


def _share(rng: random.Random, everywhere: float | None) -> float:
    """How much of what was not synced is kept: one time in three all or nothing."""
    return min(max(rng.uniform(-0.25, 1.25), 0.0), 1.0) if everywhere is None else everywhere


def _settle(directory: DirectoryNode, rng: random.Random, everywhere: float | None) -> None:
    """What became durable is what there is."""
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
    """Held until released, or until the power of its holder is cut."""

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
