"""Client quotas: rates over a sliding window, and throttle times (KIP-13, KIP-124, KIP-546).

The quota of the most specific entity of a client applies (`_PRECEDENCE`). Clients of the same entity share the
quota: all of a user, of a user and client id, or of a client id. A default quota applies separately to each
entity without its own quota.

The rate is computed as in Kafka: the sum of the samples of `window_ms` each, divided by the time since the
oldest began, at least `samples` - 1 windows. A sample expires `samples` windows after its last value. A client
that was idle may burst and is then throttled until its average meets the quota. Values are recorded after the
fact, even above the quota. There is no clock here: times are arguments, in monotonic ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from odradek.replication.controller.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from odradek.replication.controller.image import QuotaEntity
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig

ENFORCED: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
IDLE_MS: Final = 3_600_000
"""Idle time after which the state of a client is removed, as in Kafka."""
WAIT_MS_MAX: Final = 2**31 - 1
KNOWN_MAX: Final = 10_000
"""Maximum number of cached lookups; then the cache is cleared."""

_PRECEDENCE: Final = (
    ("exact", "exact"),
    ("exact", "default"),
    ("exact", None),
    ("default", "exact"),
    ("default", "default"),
    ("default", None),
    (None, "exact"),
    (None, "default"),
)
"""Kinds of (user, client id) entities, the most specific first."""

_Key = tuple[str, str | None, str | None]
"""Quota type, user and client id."""


class Rate:
    """Rate per second over a sliding window, as in Kafka; values of any unit."""

    __slots__ = ("_sample_count", "_window_ms", "_windows", "last_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._sample_count = samples
        self._window_ms = window_ms
        self._windows: deque[list[float]] = deque()
        """Samples, the oldest first: start, sum, time of the last value."""
        self.last_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        self.last_ms = now_ms
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, 0.0, now_ms])
        window = self._windows[-1]
        window[1] += value
        window[2] = now_ms

    def measure(self, now_ms: int) -> tuple[float, float]:
        """Rate per second, and the ms over which it was measured."""
        while (
            self._windows and now_ms - self._windows[0][2] >= self._sample_count * self._window_ms
        ):
            self._windows.popleft()
        elapsed = now_ms - self._windows[0][0] if self._windows else 0
        full = int(elapsed // self._window_ms)
        elapsed += max(self._sample_count - 1 - full, 0) * self._window_ms
        elapsed = max(elapsed, 1)
        return sum(total for _, total, _ in self._windows) / (elapsed / 1000), elapsed


class TokenBucket:
    """Token bucket of controller mutations (KIP-599): `rate` tokens per second, at most `burst`, one token per
    partition. A request may take more tokens than remain; the next must wait until the balance is not negative."""

    __slots__ = ("last_ms", "tokens")

    def __init__(self, now_ms: int, burst: float) -> None:
        self.tokens = burst
        self.last_ms = now_ms

    def take(self, count: int, rate: float, burst: float, now_ms: int) -> None:
        self.missing_ms(rate, burst, now_ms)
        self.tokens -= count

    def missing_ms(self, rate: float, burst: float, now_ms: int) -> int:
        """Time in ms until the balance is not negative."""
        self.tokens = min(burst, self.tokens + rate * (now_ms - self.last_ms) / 1000)
        self.last_ms = now_ms
        return _throttle_ms(-self.tokens / rate * 1000) if self.tokens < 0 else 0


def _throttle_ms(wait_ms: float) -> int:
    """Throttle time in ms, limited to the range of the field in the response."""
    return round(min(wait_ms, WAIT_MS_MAX))


K = TypeVar("K")
V = TypeVar("V", Rate, TokenBucket)


class ExpiringSensors(dict[K, V]):
    """State by client; removed after IDLE_MS without a request."""

    def __init__(self) -> None:
        super().__init__()
        self._swept_ms = 0

    def begin(self, key: K, counted: V, now_ms: int) -> V:
        """Add the state of a new client."""
        if now_ms - self._swept_ms >= IDLE_MS // 10:
            self._swept_ms = now_ms
            for idle in [k for k, one in self.items() if now_ms - one.last_ms >= IDLE_MS]:
                del self[idle]
        self[key] = counted
        return counted


@value_class
class Bucket:
    """Token bucket of a client with its rate and burst."""

    bucket: TokenBucket
    rate: float
    burst: float

    def take(self, count: int, now_ms: int) -> None:
        self.bucket.take(count, self.rate, self.burst, now_ms)

    def missing_ms(self, now_ms: int) -> int:
        return self.bucket.missing_ms(self.rate, self.burst, now_ms)


@value_class
class _ApplicableQuota:
    """Quota of a client: the limit and the key of the shared state."""

    limit: float
    key: _Key


class ClientQuotas:
    """Client quotas of one broker, and the usage of its clients."""

    def __init__(self, *, samples: int, window_ms: int, burst_seconds: float = 11.0) -> None:
        """`samples` is quota.window.num; `burst_seconds` is the total of all windows of
        controller.quota.window.num."""
        self._burst_seconds = burst_seconds
        self._buckets: ExpiringSensors[_Key, TokenBucket] = ExpiringSensors()
        self._sample_count = samples
        self._window_ms = window_ms
        self._limits: dict[str, dict[tuple[str | None, str | None, str], float]] = {}
        self._shares: dict[tuple[str, str, str], _ApplicableQuota | None] = {}
        self._rates: ExpiringSensors[_Key, Rate] = ExpiringSensors()

    def update(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the quotas; recorded usage is kept."""
        self._shares.clear()
        self._limits = {kind: {} for kind in ENFORCED}
        for entity, values in quotas.items():
            parts = dict(entity)
            if not parts.keys() <= {USER, CLIENT_ID}:
                continue  # quotas of ip entities
            shape = "".join(("u" if USER in parts else "", "c" if CLIENT_ID in parts else ""))
            for kind in ENFORCED:
                if kind in values:
                    named = (parts.get(USER), parts.get(CLIENT_ID), shape)
                    self._limits[kind][named] = values[kind]

    def __bool__(self) -> bool:
        return any(self._limits.values())

    def limits(self, kind: str) -> bool:
        """Whether any quota of this type is set."""
        return bool(self._limits.get(kind))

    def burst(self, kind: str, user: str, client_id: str) -> float | None:
        """Amount that a client may use at once without being throttled; None without a quota."""
        share = self._share(kind, user, client_id)
        if share is None:
            return None
        return share.limit * (self._sample_count - 1) * self._window_ms / 1000

    def record(self, kind: str, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Record a value; returns the throttle time in ms."""
        share = self._share(kind, user, client_id)
        if share is None:
            return 0
        rate = self._rates.get(share.key)
        if rate is None:
            new = Rate(self._sample_count, self._window_ms)
            rate = self._rates.begin(share.key, new, now_ms)
        rate.record(value, now_ms)
        measured, window_ms = rate.measure(now_ms)
        if measured <= share.limit:
            return 0
        wait_ms = _throttle_ms((measured - share.limit) / share.limit * window_ms)
        return min(wait_ms, self._window_ms) if kind == REQUEST_PERCENTAGE else wait_ms

    def mutations(self, user: str, client_id: str, now_ms: int) -> Bucket | None:
        """Token bucket of controller_mutation_rate of a client; None without a quota."""
        share = self._share(CONTROLLER_MUTATION_RATE, user, client_id)
        if share is None:
            return None
        burst = share.limit * self._burst_seconds
        bucket = self._buckets.get(share.key)
        if bucket is None:
            bucket = self._buckets.begin(share.key, TokenBucket(now_ms, burst), now_ms)
        return Bucket(bucket, share.limit, burst)

    def _share(self, kind: str, user: str, client_id: str) -> _ApplicableQuota | None:
        who = (kind, user, client_id)
        if who not in self._shares:
            if len(self._shares) >= KNOWN_MAX:
                self._shares.clear()
            self._shares[who] = self._find(kind, user, client_id)
        return self._shares[who]

    def _find(self, kind: str, user: str, client_id: str) -> _ApplicableQuota | None:
        limits = self._limits.get(kind, {})
        for user_part, client_part in _PRECEDENCE:
            if client_part is not None and not client_id:
                continue  # an empty client id can match quotas of users only
            named = (
                user if user_part == "exact" else None,
                client_id if client_part == "exact" else None,
                ("u" if user_part else "") + ("c" if client_part else ""),
            )
            limit = limits.get(named)
            if limit is not None:
                key = (kind, user if user_part else None, client_id if client_part else None)
                return _ApplicableQuota(limit, key)
        return None


def quotas_from(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    config: ServerConfig,
    before: ClientQuotas | None,
) -> ClientQuotas | None:
    """Client quotas with the recorded usage of `before`; None if none is enforced here."""
    if before is None:
        before = ClientQuotas(
            samples=config.get_int("quota.window.num"),
            window_ms=config.get_int("quota.window.size.seconds") * 1000,
            burst_seconds=config.get_int("controller.quota.window.num")
            * config.get_int("controller.quota.window.size.seconds"),
        )
    before.update(quotas)
    return before if before else None
