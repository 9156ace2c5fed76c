"""The machine: CPU time and memory of processes, idle detection, warm memory, and a description.

The CPU time of running processes is read from their clocks (ns), and that of children that ended from /proc
(hundredths of a second). The sum over a process tree therefore includes children that ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PF_KTHREAD = 0x00200000

QUIET_DIRTY_BYTES = 64 << 20
QUIET_CORES = 0.1
QUIET_LOOK_S = 0.2


@dataclass(frozen=True)
class _Stat:
    """Fields of /proc/PID/stat."""

    parent: int
    is_kernel: bool
    own_s: float
    children_s: float
    resident_bytes: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended
        return None
    fields = text.rpartition(")")[2].split()  # the name before may have spaces
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return _Stat(
        parent=int(fields[1]),
        is_kernel=bool(int(fields[6]) & _PF_KTHREAD),
        own_s=own * _TICK_S,
        children_s=children * _TICK_S,
        resident_bytes=int(fields[21]) * _PAGE,
    )


def _all_processes() -> dict[int, _Stat]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            found[int(name)] = stat
    return found


def _tree(root: int, processes: Mapping[int, _Stat], without: Collection[int] = ()) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in processes.items():
        children.setdefault(stat.parent, []).append(pid)
    tree, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid in without:
            continue
        if pid in processes:
            tree.append(pid)
        todo += children.get(pid, [])
    return tree


def _clock_s(pid: int) -> float | None:
    """The process's CPU clock (clock_getcpuclockid(3)): all its threads, also ended ones."""
    try:
        return time.clock_gettime(((~pid) << 3) | 2)
    except OSError:
        return None


def tree_cpu_s(root: int) -> float:
    """User and system seconds of a process and all its descendants since they started."""
    processes = _all_processes()
    return sum(
        (processes[pid].own_s if (exact := _clock_s(pid)) is None else exact)
        + processes[pid].children_s
        for pid in _tree(root, processes)
    )


def tree_resident_bytes(root: int) -> int:
    """Resident memory of a process and all its descendants."""
    processes = _all_processes()
    return sum(processes[pid].resident_bytes for pid in _tree(root, processes))


@dataclass(frozen=True)
class Usage:
    """CPU use of other processes during a period of `elapsed_s` seconds.

    `others_s` is in CPU seconds: processes outside the watched tree, and steal time. Kernel threads do not count.
    """

    elapsed_s: float
    others_s: float

    @property
    def others_cores(self) -> float:
        """Return the CPU use of others in cores: 0.25 is a quarter of a core."""
        return self.others_s / self.elapsed_s if self.elapsed_s > 0 else 0.0


class Watch:
    """Measures the CPU use of other processes: `watch = Watch(); …; usage = watch.stop()`.

    The descendants of this process do not count as others, except the trees of `bystanders`: brokers that are
    running but are not being measured.
    """

    def __init__(self, bystanders: Collection[int] = ()) -> None:
        self._bystanders = frozenset(bystanders)
        self._began = time.monotonic()
        self._before = self._others_s()

    def stop(self) -> Usage:
        """Return the CPU use since the creation. It can be called more than once."""
        return Usage(time.monotonic() - self._began, self._others_s() - self._before)

    def _others_s(self) -> float:
        # The time of a process that ends is added to its parent's, so the sum over all processes is the
        # total time since boot.
        processes = _all_processes()
        own = set(_tree(os.getpid(), processes, without=self._bystanders))
        used = sum(
            stat.own_s + stat.children_s
            for pid, stat in processes.items()
            if pid not in own and not stat.is_kernel
        )
        return used + _steal_s()


def adopt_orphans() -> None:
    """Adopt processes whose parent ends, so that their CPU time does not count as that of others."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _steal_s() -> float:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) * _TICK_S


def settle(bystanders: Collection[int] = (), timeout_s: float = 60) -> None:
    """Wait until dirty pages are written and other processes and `bystanders` are idle.

    Returns after `timeout_s` seconds at the latest, or slightly later.
    """
    os.sync()
    end = time.monotonic() + timeout_s
    while meminfo_bytes("Dirty", "Writeback") > QUIET_DIRTY_BYTES and time.monotonic() < end:
        time.sleep(0.05)
    end = min(end, time.monotonic() + timeout_s / 3)
    cores = 1.0
    while cores > QUIET_CORES and time.monotonic() < end:
        watch = Watch(bystanders)
        time.sleep(QUIET_LOOK_S)
        cores = watch.stop().others_cores


def meminfo_bytes(*names: str) -> int:
    """Return the sum of some fields of /proc/meminfo, in bytes."""
    wanted = tuple(f"{name}:" for name in names)
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))


def describe() -> dict[str, str]:
    """Return the description of the machine for the results."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{meminfo_bytes('MemTotal') / 2**30:.1f} GiB",
        "kernel": platform.release().partition("-")[0],
        "TCP": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "python": platform.python_version(),
    }


TOOTH_PAGES = 32
"""One page of this number stays allocated. Linux reports only larger free blocks to the host (order 5)."""
LEFT_ALONE_BYTES = 384 << 20
"""Free memory that is not touched, for other processes. It is small, because its free blocks become cold."""
AT_ONCE_BYTES = 64 << 20
"""Memory that is touched between two checks of the available memory."""
ALL_FREE_BYTES = 1 << 60


@contextmanager
def warm_memory(size_bytes: int = ALL_FREE_BYTES) -> Iterator[None]:
    """Keep up to `size_bytes` of the free memory warm inside the `with` block.

    On a virtual machine, the first use of a page is handled by the host, and can cost ten times as much as the copy
    that is measured. Touching and freeing the memory does not help if the guest reports free pages to the host. But
    the guest reports only large free blocks. So this function touches the memory and frees it except one page in
    `TOOTH_PAGES` (less than 1/30 of it); the free blocks between these pages are too small to be reported.

    It takes seconds per GiB of cold memory, and stops early if other processes need the memory.
    """
    size = min(size_bytes, meminfo_bytes("MemAvailable") - LEFT_ALONE_BYTES)
    size -= size % (TOOTH_PAGES * mmap.PAGESIZE)
    if size <= 0:
        yield
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)  # a child would keep the freed pages
        touched = 0
        while touched < size and meminfo_bytes("MemAvailable") > LEFT_ALONE_BYTES:
            until = min(size, touched + AT_ONCE_BYTES)
            for offset in range(touched, until, mmap.PAGESIZE):
                memory[offset] = 1
            touched = until
        for offset in range(0, touched, TOOTH_PAGES * mmap.PAGESIZE):
            gap = offset + mmap.PAGESIZE
            memory.madvise(mmap.MADV_DONTNEED, gap, (TOOTH_PAGES - 1) * mmap.PAGESIZE)
        yield
