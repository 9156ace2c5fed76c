"""How much a client may do: rates over a sliding window, and how long it waits where it did more (KIP-13,
KIP-124, KIP-546).

A quota is that of the most specific entity which a client is part of (`_PRECEDENCE`); it is shared by
all clients that are the same as far as that entity goes: all of a user, all of a user with one client
id, all with one client id. A default is a quota for each of those that have none of their own, not one
for them together.

The rate is Kafka's: what was counted in windows of `window_ms`, over the time since the oldest of them
began, but at least over `samples` of them but one. A window counts until the last that it counted is
`samples` windows ago. So a client that was idle may burst, and then waits
until its average is what it may be. Values are counted after the fact, and count even where they exceed.
No clock here: time comes in as an argument, in monotonic ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from odradek.replication.controller.image import QuotaEntity
from odradek.replication.controller.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
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
"""After so long without a request, what was counted of a client is forgotten (Kafka's limit)."""
WAIT_MS_MAX: Final = 2**31 - 1
KNOWN_MAX: Final = 10_000
"""Clients of which it is kept what is theirs; then all are looked up again."""

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
"""(user, client id) of the entities that a client is part of, the most specific first."""

_Key = tuple[str, str | None, str | None]
"""(kind, user, client id)"""


class Rate:
    """See the module. Values of any unit; the rate is per second."""

    __slots__ = ("_samples", "_window_ms", "_windows", "last_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._windows: deque[list[float]] = deque()
        """[since when, sum, last counted when], the oldest first."""
        self.last_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        self.last_ms = now_ms
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, 0.0, now_ms])
        window = self._windows[-1]
        window[1] += value
        window[2] = now_ms

    def measure(self, now_ms: int) -> tuple[float, float]:
        """The rate, and the ms that it was measured over."""
        while self._windows and now_ms - self._windows[0][2] >= self._samples * self._window_ms:
            self._windows.popleft()
        elapsed = now_ms - self._windows[0][0] if self._windows else 0
        full = int(elapsed // self._window_ms)
        elapsed += max(self._samples - 1 - full, 0) * self._window_ms
        elapsed = max(elapsed, 1)
        return sum(total for _, total, _ in self._windows) / (elapsed / 1000), elapsed


class TokenBucket:
    """Of a client's controller mutations (KIP-599): `rate` tokens a second come in, `burst` at most are
    kept, and one is taken for each partition. Who has any may take more than there are, and has to wait
    until none is missing."""

    __slots__ = ("last_ms", "tokens")

    def __init__(self, now_ms: int, burst: float) -> None:
        self.tokens = burst
        self.last_ms = now_ms

    def take(self, count: int, rate: float, burst: float, now_ms: int) -> None:
        self.missing_ms(rate, burst, now_ms)
        self.tokens -= count

    def missing_ms(self, rate: float, burst: float, now_ms: int) -> int:
        """For how long tokens are still missing."""
        self.tokens = min(burst, self.tokens + rate * (now_ms - self.last_ms) / 1000)
        self.last_ms = now_ms
        return _told_ms(-self.tokens / rate * 1000) if self.tokens < 0 else 0


def _told_ms(wait_ms: float) -> int:
    """As an answer can say it; a quota may be as small as one likes."""
    return round(min(wait_ms, WAIT_MS_MAX))


K = TypeVar("K")
V = TypeVar("V", Rate, TokenBucket)


class Counted(dict[K, V]):
    """What was counted of each; forgotten some time after IDLE_MS without a request."""

    def __init__(self) -> None:
        super().__init__()
        self._swept_ms = 0

    def begin(self, key: K, counted: V, now_ms: int) -> V:
        """With one of whom nothing is known."""
        if now_ms - self._swept_ms >= IDLE_MS // 10:
            self._swept_ms = now_ms
            for idle in [k for k, one in self.items() if now_ms - one.last_ms >= IDLE_MS]:
                del self[idle]
        self[key] = counted
        return counted


@value_class
class Bucket:
    """A client's, and what comes into it."""

    tokens: TokenBucket
    rate: float
    burst: float

    def take(self, count: int, now_ms: int) -> None:
        self.tokens.take(count, self.rate, self.burst, now_ms)

    def missing_ms(self, now_ms: int) -> int:
        return self.tokens.missing_ms(self.rate, self.burst, now_ms)


@value_class
class _Share:
    """What a client is measured by: the limit, and whose rate counts."""

    limit: float
    key: _Key


class ClientQuotas:
    """The quotas of one broker, and what its clients have used of them."""

    def __init__(self, *, samples: int, window_ms: int, burst_seconds: float = 11.0) -> None:
        """`samples` is quota.window.num; `burst_seconds` those of controller mutations, all windows of
        controller.quota.window.num together."""
        self._burst_seconds = burst_seconds
        self._buckets: Counted[_Key, TokenBucket] = Counted()
        self._samples = samples
        self._window_ms = window_ms
        self._limits: dict[str, dict[tuple[str | None, str | None, str], float]] = {}
        self._shares: dict[tuple[str, str, str], _Share | None] = {}
        self._rates: Counted[_Key, Rate] = Counted()

    def update(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """These hold from now on; what was counted counts on."""
        self._shares.clear()
        self._limits = {kind: {} for kind in ENFORCED}
        for entity, values in quotas.items():
            parts = dict(entity)
            if not parts.keys() <= {USER, CLIENT_ID}:
                continue  # of addresses
            shape = "".join(("u" if USER in parts else "", "c" if CLIENT_ID in parts else ""))
            for kind in ENFORCED:
                if kind in values:
                    named = (parts.get(USER), parts.get(CLIENT_ID), shape)
                    self._limits[kind][named] = values[kind]

    def __bool__(self) -> bool:
        return any(self._limits.values())

    def limits(self, kind: str) -> bool:
        """Whether there is any quota of that kind."""
        return bool(self._limits.get(kind))

    def burst(self, kind: str, user: str, client_id: str) -> float | None:
        """The most that a client may do at once without being sure to wait; None if it has no quota."""
        share = self._share(kind, user, client_id)
        if share is None:
            return None
        return share.limit * (self._samples - 1) * self._window_ms / 1000

    def record(self, kind: str, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count it; for how many ms the client is to be left alone, so that its rate is its quota."""
        share = self._share(kind, user, client_id)
        if share is None:
            return 0
        rate = self._rates.get(share.key)
        if rate is None:
            new = Rate(self._samples, self._window_ms)
            rate = self._rates.begin(share.key, new, now_ms)
        rate.record(value, now_ms)
        measured, window_ms = rate.measure(now_ms)
        if measured <= share.limit:
            return 0
        wait_ms = _told_ms((measured - share.limit) / share.limit * window_ms)
        return min(wait_ms, self._window_ms) if kind == REQUEST_PERCENTAGE else wait_ms

    def mutations(self, user: str, client_id: str, now_ms: int) -> Bucket | None:
        """What a client has left of its controller_mutation_rate; None if it has no such quota."""
        share = self._share(CONTROLLER_MUTATION_RATE, user, client_id)
        if share is None:
            return None
        burst = share.limit * self._burst_seconds
        bucket = self._buckets.get(share.key)
        if bucket is None:
            bucket = self._buckets.begin(share.key, TokenBucket(now_ms, burst), now_ms)
        return Bucket(bucket, share.limit, burst)

    def _share(self, kind: str, user: str, client_id: str) -> _Share | None:
        who = (kind, user, client_id)
        if who not in self._shares:
            if len(self._shares) >= KNOWN_MAX:
                self._shares.clear()
            self._shares[who] = self._find(kind, user, client_id)
        return self._shares[who]

    def _find(self, kind: str, user: str, client_id: str) -> _Share | None:
        limits = self._limits.get(kind, {})
        for user_part, client_part in _PRECEDENCE:
            if client_part is not None and not client_id:
                continue  # who does not say what it is has a user's quota at most
            named = (
                user if user_part == "exact" else None,
                client_id if client_part == "exact" else None,
                ("u" if user_part else "") + ("c" if client_part else ""),
            )
            limit = limits.get(named)
            if limit is not None:
                key = (kind, user if user_part else None, client_id if client_part else None)
                return _Share(limit, key)
        return None


def quotas_from(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    config: ServerConfig,
    before: ClientQuotas | None,
) -> ClientQuotas | None:
    """These, with what was counted before; None if none of them is of a kind that is kept here."""
    if before is None:
        before = ClientQuotas(
            samples=config.get_int("quota.window.num"),
            window_ms=config.get_int("quota.window.size.seconds") * 1000,
            burst_seconds=config.get_int("controller.quota.window.num")
            * config.get_int("controller.quota.window.size.seconds"),
        )
    before.update(quotas)
    return before if before else None
