"""Hypothesis strategies for logs, and logs cut at random places."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from odradek.protocol.records.records import Record, build_batch

small = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


bytes_or_none = st.none() | st.binary(max_size=40)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches of one log with gaps as after compaction, with every codec."""
    found = []
    offset = draw(st.integers(0, 2**40))
    end = 0
    for _ in range(draw(st.integers(1, 5))):
        records = []
        for _ in range(draw(st.integers(1, 8))):
            offset += draw(st.sampled_from((1, 1, 1, 2, 1000)))
            headers = draw(st.lists(st.tuples(st.text(max_size=5), bytes_or_none), max_size=3))
            records.append(
                Record(
                    offset,
                    draw(st.integers(0, 2**41)),
                    draw(bytes_or_none),
                    draw(bytes_or_none),
                    tuple(headers),
                )
            )
        first = records[0].offset - draw(st.integers(0, min(3, records[0].offset - end)))
        end = records[-1].offset + 1
        found.append(
            bytes(
                build_batch(
                    records,
                    base_offset=first,
                    compression=draw(st.integers(0, 4)),
                    timestamp_type=draw(st.integers(0, 1)),
                    producer_id=draw(st.sampled_from((-1, 7))),
                )
            )
        )
        offset += draw(st.integers(0, 3))
    return found


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]
