"""Java's `String.hashCode` and the iteration order of `HashMap`, which Kafka's behaviour depends on."""

from __future__ import annotations

from functools import cache


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java, a signed 32-bit integer over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@cache
def hash_map_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Sort `names` as Java lists the keys of a `HashMap`: by bucket, in the smallest table of a power of two
    that is at most three quarters full. Names of one bucket keep their order. The table of a Java program may
    be larger."""
    size = 1
    while len(names) > size * 3 // 4:
        size *= 2

    def bucket(name: str) -> int:
        hashed = java_string_hash(name) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (size - 1)

    return tuple(sorted(names, key=bucket))
