"""Properties of an object store that tiered storage and diskless topics have in common.

    aws_*, google_*, azure_*  options of that kind of store (aws_endpoint, aws_region, …; "." is accepted for "_")
    connect.timeout.ms, request.timeout.ms, retries, retry.backoff.ms, retry.backoff.max.ms,
    retry.timeout.ms          timeouts and retries of requests to the store

An invalid property raises ValueError with its name and the valid values.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from odradek.seams.objects import DEFAULT_STORE_TIMEOUTS, StoreTimeouts

_TIMEOUTS = (
    "connect.timeout.ms", "request.timeout.ms", "retries", "retry.backoff.ms",
    "retry.backoff.max.ms", "retry.timeout.ms",
)  # fmt: skip
_STORES_OWN = ("aws_", "google_", "azure_")


class StoreProperties:
    """Properties by their short names, with the full names for error messages."""

    def __init__(self, kind: str, prefix: str, names: Collection[str]) -> None:
        """`kind` describes the store in error messages, `prefix` is that of a property that is not set, and `names`
        are the short names of the properties that this kind has on top of those above."""
        self._kind = kind
        self._prefix = prefix
        self._names = (*names, *_TIMEOUTS)
        self._values: dict[str, str] = {}
        self._full_names: dict[str, str] = {}

    def take(self, name: str, short: str, value: str) -> None:
        """Set a property, replacing an earlier value. Raises ValueError for an unknown one."""
        if short.startswith(("aws.", "google.", "azure.")):
            short = short.replace(".", "_")
        if short not in self._names and not short.startswith(_STORES_OWN):
            close = get_close_matches(short, self._names, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{name} is not a property of {self._kind}{meant}")
        self._values[short] = value
        self._full_names[short] = name

    def __contains__(self, short: str) -> bool:
        return short in self._values

    def get(self, short: str, default: str = "") -> str:
        return self._values.get(short, default)

    def options(self) -> dict[str, str]:
        """Options of the kind of store."""
        return {name: value for name, value in self._values.items() if name.startswith(_STORES_OWN)}

    def timeouts(self) -> StoreTimeouts:
        usual = DEFAULT_STORE_TIMEOUTS
        return StoreTimeouts(
            connect_seconds=self._seconds("connect.timeout.ms", usual.connect_seconds),
            request_seconds=self._seconds("request.timeout.ms", usual.request_seconds),
            retries=self.number("retries", usual.retries, least=0),
            first_backoff_seconds=self._seconds("retry.backoff.ms", usual.first_backoff_seconds),
            longest_backoff_seconds=self._seconds(
                "retry.backoff.max.ms", usual.longest_backoff_seconds
            ),
            all_retries_seconds=self._seconds("retry.timeout.ms", usual.all_retries_seconds),
        )

    def number(self, short: str, default: int, *, least: int) -> int:
        text = self._values.get(short)
        if text is None:
            return default
        if not text.isdecimal() or not least <= int(text) < 1 << 31:
            raise self.wrong(short, f"a whole number from {least} on")
        return int(text)

    def wrong(self, short: str, may_be: str) -> ValueError:
        """Error of a value that is not `may_be`."""
        return ValueError(
            f"{self.full_name(short)} is {self._values.get(short, '')!r}: set it to {may_be}"
        )

    def full_name(self, short: str) -> str:
        return self._full_names.get(short, f"{self._prefix}{short}")

    def _seconds(self, short: str, default: float) -> float:
        return self.number(short, round(default * 1000), least=1) / 1000
