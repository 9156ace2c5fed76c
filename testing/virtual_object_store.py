"""Object storage in memory, with faults: unavailable, slow, hanging, partial, or lost responses.

The store (`VirtualBucket`) outlives the nodes; `VirtualObjectStore` is the `Objects` seam of one node.
A `StoreFault` specifies which requests fail, how often, and how. A node can lose its power at a request,
before or after the store has performed it: this is a crash between two steps of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase

from odradek.seams.clock import Clock
from odradek.seams.files import Buffer
from odradek.seams.objects import (
    DEFAULT_STORE_TIMEOUTS,
    ObjectInfo,
    ObjectMissing,
    Objects,
    ObjectsUnavailable,
    StoreTimeouts,
)
from odradek.seams.values import value_class
from odradek.testing.power import NodeCrashed, Power

OPERATIONS = ("put", "get", "get_range", "head", "delete", "list")
CHANGES = ("put", "delete")


class StoreFaultKind(Enum):
    FAILS = "nothing is done, and the request fails"
    THROTTLED = "nothing is done: 503 Slow Down"
    HANGS = "nothing is done, and the request times out"
    SLOW = "done, with a late response"
    RESPONSE_LOST = "done, but the request fails"
    HALF_DONE = "a part of the object is stored, or read; the put fails, the read does not"
    FALSE_SUCCESS = "nothing is done, but a put or delete succeeds; a read finds no object"
    POWER_CUT = "the node's power is cut before the request arrives"
    POWER_CUT_AFTER = "done, and the node's power is cut before the response arrives"


@value_class
class StoreFault:
    """Affects `times` requests (None: all, until `heal`) of `operations` on matching keys.

    The first `after` matching requests succeed. `pattern` is an fnmatch pattern; `seconds` is the
    duration of a slow response or a timeout.
    """

    kind: StoreFaultKind
    pattern: str = "*"
    operations: tuple[str, ...] = OPERATIONS
    times: int | None = None
    after: int = 0
    seconds: float = 30.0


class VirtualBucket:
    """The stored objects, and the injected faults."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        """(operation, key) of every request, failed or not."""
        self.draw: Callable[[str, str], StoreFault | None] | None = None
        """Called with (operation, key) for a random fault if no injected fault matches."""
        self.on_remove: Callable[[str], None] | None = None
        """Called with the key of each object before it is removed."""
        self.affected_requests = 0
        """The number of requests that a fault affected."""
        self._clock = clock
        self._injected: list[_InjectedFault] = []

    def inject(self, fault: StoreFault) -> None:
        self._injected.append(_InjectedFault(fault))

    def heal(self) -> None:
        """Remove all injected and random faults."""
        self._injected.clear()
        self.draw = None

    def fault(self, operation: str, key: str) -> StoreFault | None:
        """Return the fault of the current request; injected faults come before random ones."""
        found = next((each for each in self._injected if each.affects(operation, key)), None)
        fault = None if found is None else found.fault
        if fault is None and self.draw is not None:
            fault = self.draw(operation, key)
        self.affected_requests += fault is not None
        return fault

    def store(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self.modified_ms[key] = self._clock.wall_ms() if self._clock is not None else 0

    def remove(self, key: str) -> None:
        if key in self.objects and self.on_remove is not None:
            self.on_remove(key)
        self.objects.pop(key, None)
        self.modified_ms.pop(key, None)

    def info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.objects[key]), self.modified_ms.get(key, 0))


class _InjectedFault:
    """An injected fault, and how many requests it still skips and affects."""

    def __init__(self, fault: StoreFault) -> None:
        self.fault = fault
        self._to_pass = fault.after
        self._left = fault.times

    def affects(self, operation: str, key: str) -> bool:
        fault = self.fault
        if operation not in fault.operations or not fnmatchcase(key, fault.pattern):
            return False
        if self._to_pass:
            self._to_pass -= 1
            return False
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0


class VirtualObjectStore(Objects):
    """The object storage of one node; `wait(seconds)` delays the call (`VirtualOffload.extend_current_call`)."""

    def __init__(
        self,
        bucket: VirtualBucket | None = None,
        power: Power | None = None,
        wait: Callable[[float], None] | None = None,
        *,
        page_objects: int = 1000,
    ) -> None:
        self.bucket = bucket or VirtualBucket()
        self._power = power or Power()
        self._wait = wait
        self._page_objects = page_objects

    def at(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        timeouts: StoreTimeouts = DEFAULT_STORE_TIMEOUTS,
        identity_file: str | None = None,
    ) -> VirtualObjectStore:
        """Implements `OpenObjects`: every URL opens the same bucket."""
        return self

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        data = b"".join(parts)
        fault = self._enter("put", key)
        if fault is StoreFaultKind.HALF_DONE:
            self.bucket.store(key, data[: len(data) // 2])
            raise ObjectsUnavailable(f"{key}: the connection broke")
        if fault is not StoreFaultKind.FALSE_SUCCESS:
            self.bucket.store(key, data)
        self._leave(fault, key)

    def get(self, key: str) -> Buffer:
        data = self._read("get", key)
        return memoryview(data)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        data = self._read("get_range", key, slice(start, start + size))
        return memoryview(data)

    def head(self, key: str) -> ObjectInfo:
        fault = self._enter("head", key)
        self._found(key, fault)
        self._leave(fault, key)
        return self.bucket.info(key)

    def delete(self, key: str) -> None:
        fault = self._enter("delete", key)
        if fault is StoreFaultKind.HALF_DONE:
            raise ObjectsUnavailable(f"{key}: the connection broke")
        if fault is not StoreFaultKind.FALSE_SUCCESS:
            self.bucket.remove(key)
        self._leave(fault, key)

    def delete_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        while True:
            fault = self._enter("list", prefix)
            coming = [key for key in sorted(self.bucket.objects) if key.startswith(below)]
            page = [key for key in coming if key > after][: self._page_objects]
            self._leave(fault, prefix)
            if not page:
                return
            yield [self.bucket.info(key) for key in page]
            after = page[-1]
            if after == coming[-1]:
                return

    def directories(self, prefix: str) -> Sequence[str]:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        fault = self._enter("list", prefix)
        rest = (key[len(below) :] for key in self.bucket.objects if key.startswith(below))
        found = sorted({name.partition("/")[0] for name in rest if "/" in name})
        self._leave(fault, prefix)
        return found

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        fault = self._enter("list", prefix)
        keys = [key for key in sorted(self.bucket.objects) if key.startswith(below)]
        self._leave(fault, prefix)
        return [self.bucket.info(key) for key in keys if "/" not in key[len(below) :]]

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        """A put is atomic here, so there is nothing to sweep."""
        return []

    def _read(self, operation: str, key: str, part: slice = slice(None)) -> bytes:
        fault = self._enter(operation, key)
        data = self._found(key, fault)[part]
        self._leave(fault, key)
        return data[: len(data) // 2] if fault is StoreFaultKind.HALF_DONE else data

    def _found(self, key: str, fault: StoreFaultKind | None) -> bytes:
        data = self.bucket.objects.get(key)
        if data is None or fault is StoreFaultKind.FALSE_SUCCESS:
            raise ObjectMissing(key)
        return data

    def _enter(self, operation: str, key: str) -> StoreFaultKind | None:
        """Begin a request; return the kind of its fault if the store performs it nevertheless."""
        self._power.check()
        self.bucket.requests.append((operation, key))
        fault = self.bucket.fault(operation, key)
        if fault is None:
            return None
        if self._wait is not None and fault.kind in (StoreFaultKind.HANGS, StoreFaultKind.SLOW):
            self._wait(fault.seconds)
        if fault.kind is StoreFaultKind.FAILS:
            raise ObjectsUnavailable(f"{key}: the store is unavailable")
        if fault.kind is StoreFaultKind.THROTTLED:
            raise ObjectsUnavailable(f"{key}: 503 Slow Down")
        if fault.kind is StoreFaultKind.HANGS:
            raise ObjectsUnavailable(f"{key}: timed out after {fault.seconds} s")
        if fault.kind is StoreFaultKind.POWER_CUT:
            self._cut()
        return fault.kind

    def _leave(self, fault: StoreFaultKind | None, key: str) -> None:
        """Complete a request: raise if its response is lost, or cut the power."""
        if fault is StoreFaultKind.RESPONSE_LOST:
            raise ObjectsUnavailable(f"{key}: the store's response was lost")
        if fault is StoreFaultKind.POWER_CUT_AFTER:
            self._cut()

    def _cut(self) -> None:
        self._power.cut()
        raise NodeCrashed
