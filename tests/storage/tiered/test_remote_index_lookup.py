"""Position of a batch by the offset index of a remote segment: at or before its first byte, at or
after its last, not in the next batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.log.offset_index import ENTRY
from odradek.storage.tiered.remote_index_lookup import lookup_offset, position_behind

BASE = 1000


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(61, 500), st.booleans()), min_size=1),
    st.integers(0, 200),
)
def test_index_positions_enclose_batch_of_offset(
    batches: list[tuple[int, int, bool]], ahead: int
) -> None:
    """Batches of these numbers of offsets and bytes; not every batch has an index entry."""
    index = b""
    offset, position, spans = BASE, 0, []
    for count, size, has_entry in batches:
        spans.append((offset, offset + count - 1, position, position + size))
        if has_entry and position:
            index += ENTRY.pack(offset + count - 1 - BASE, position)
        offset, position = offset + count, position + size
    wanted = BASE + ahead % (offset - BASE)
    (number,) = [at for at, (first, last, _, _) in enumerate(spans) if first <= wanted <= last]
    found = lookup_offset(index, BASE, wanted)
    assert found is None or found[1] <= spans[number][2]
    behind = position_behind(index, BASE, wanted)
    assert behind is None or behind >= spans[number + 1][3]
