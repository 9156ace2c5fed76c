"""Random damage to index files, and a log with transactions and timestamps on which they are used."""

from __future__ import annotations

import random

from tests.support.partition_logs import NOW_MS, LogWorld, batch, idempotent, marker


def damage(rng: random.Random, data: bytes, entry_bytes: int) -> bytes:
    """Return other bytes than `data`, as a failing disk or a lost write leaves them: of the same length, or shorter."""
    while True:
        found = _damage(rng, bytearray(data), entry_bytes)
        if found != data:
            return found


def _damage(rng: random.Random, data: bytearray, entry_bytes: int) -> bytes:
    entries = len(data) // entry_bytes
    first = rng.randrange(entries) * entry_bytes
    second = rng.randrange(entries) * entry_bytes
    match rng.randrange(7):
        case 0 | 1:
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:  # one field with an extreme value
            at = first + rng.randrange(0, entry_bytes - 3)
            data[at : at + 4] = rng.choice(
                [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", bytes(4)]
            )
        case 3:
            data[first : first + entry_bytes] = rng.randbytes(entry_bytes)
        case 4:
            data[first : first + entry_bytes] = data[second : second + entry_bytes]
        case 5:
            first, second = sorted((first, second))
            data[first : second + entry_bytes] = bytes(second + entry_bytes - first)
        case _:
            del data[rng.randrange(len(data)) :]
    return bytes(data)


def append_random_batches(rng: random.Random, world: LogWorld, count: int) -> None:
    """Append batches of three producers, two of which use transactions; timestamps are not in order."""
    sequences, is_open = {7: 0, 8: 0}, {7: False, 8: False}
    for number in range(count):
        records = rng.randint(1, 4)
        times = [NOW_MS + 1000 * number + rng.randrange(9_000) for _ in range(records)]
        producer = rng.choice([-1, 7, 8])
        if producer < 0:
            world.append(batch(records, timestamps=times))
        elif is_open[producer] and rng.random() < 0.4:
            commit = rng.random() < 0.3
            world.coordinate(marker(producer, commit=commit, timestamp=times[0]))
            is_open[producer] = False
        else:
            world.append(
                idempotent(
                    producer, sequences[producer], records, timestamps=times, transactional=True
                )
            )
            sequences[producer] += records
            is_open[producer] = True
    for producer in (7, 8):
        if is_open[producer]:
            world.coordinate(marker(producer, commit=False))
