"""Finds calls and constants of the standard library that not every platform has, and paths of Linux."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from tests.structure.sources import ROOT, product_folders

LINUX_ONLY: dict[str, tuple[str, ...]] = {
    "os": (
        "copy_file_range", "eventfd", "fdatasync", "memfd_create", "pidfd_open", "posix_fadvise",
        "posix_fallocate", "preadv", "pwritev", "sched_getaffinity", "sched_setaffinity",
        "sched_yield", "sendfile", "setns", "splice", "unshare", "getrandom",
        "O_DIRECT", "O_TMPFILE", "O_NOATIME", "O_PATH", "RWF_NOWAIT", "RWF_HIPRI", "RWF_DSYNC",
        "RWF_SYNC", "RWF_APPEND",
    ),
    "select": ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLLET", "EPOLLRDHUP", "POLLRDHUP"),
    "socket": (
        "AF_ALG", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "MSG_MORE", "MSG_NOSIGNAL", "MSG_ERRQUEUE",
        "SO_BINDTODEVICE", "SO_INCOMING_CPU", "SO_MARK", "SO_PEERCRED", "SO_PRIORITY",
        "SO_REUSEPORT", "TCP_CONGESTION", "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_FASTOPEN",
        "TCP_INFO", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_USER_TIMEOUT",
    ),
    "fcntl": (
        "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS",
        "F_NOTIFY", "F_SETLEASE", "F_FULLFSYNC",
    ),
    "mmap": ("MADV_DONTNEED", "MADV_FREE", "MADV_HUGEPAGE", "MADV_POPULATE_READ", "MAP_POPULATE"),
    "signal": ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "signalfd", "pidfd_send_signal"),
    "resource": ("prlimit", "RLIMIT_MSGQUEUE", "RUSAGE_THREAD"),
    "time": ("CLOCK_BOOTTIME", "CLOCK_TAI"),
}  # fmt: skip
"""Names by their module; some exist on macOS, but with another effect or only since a version."""

NATIVE = frozenset({"prctl", "renameat2", "sync_file_range", "io_uring_setup", "malloc_trim"})
"""Functions of the C library of Linux, which are called with ctypes."""

LINUX_PATH = re.compile(r"/(?:proc|sys|dev/shm)/")
_ANY = re.compile(
    "|".join(
        [LINUX_PATH.pattern, *NATIVE, *(name for names in LINUX_ONLY.values() for name in names)]
    )
)


def find_platform_calls(root: Path = ROOT) -> Iterator[tuple[PurePath, str]]:
    """Yield the file and the name of each use: attributes, imports, and strings passed to getattr and hasattr."""
    for folder in product_folders(root):
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if _ANY.search(text):  # most files have no such word and are not parsed
                for node in ast.walk(ast.parse(text, str(path))):
                    for name in _names(node):
                        yield path.relative_to(root), name


def _names(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            if name in LINUX_ONLY.get(module, ()):
                return [f"{module}.{name}"]
            return [name] if name in NATIVE else []
        case ast.ImportFrom(module=str(module), names=names):
            only = LINUX_ONLY.get(module, ())
            return [f"{module}.{each.name}" for each in names if each.name in only]
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"),
            args=[ast.Name(id=module), ast.Constant(value=name), *_],
        ):
            return [f"{module}.{name}"] if name in LINUX_ONLY.get(module, ()) else []
        case ast.Constant(value=str(text)) if LINUX_PATH.match(text):
            return [text]
    return []
