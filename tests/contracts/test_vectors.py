"""The rest of a list of buffers after a short write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.seams.files import rest_after


@given(parts=st.lists(st.binary(max_size=9)), data=st.data())
def test_rest_after_short_write(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    taken = data.draw(st.integers(0, len(whole)))
    rest = rest_after(parts, taken)
    assert b"".join(bytes(part) for part in rest) == whole[taken:]
    assert all(len(part) for part in rest)
