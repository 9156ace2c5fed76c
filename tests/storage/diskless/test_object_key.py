"""Keys of the objects of diskless topics."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.storage.diskless.object_key import key_prefix, object_key, parse_object_key

ID = UUID("0f7f4b6c-9d47-4c39-8e35-2f0a9c1c2f11")


def test_object_key_has_time_broker_and_uuid() -> None:
    assert object_key(1_700_000_000_123, 7, ID) == f"diskless/1700000000123-7-{ID}"


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13 - 1), st.integers(0, 2**31 - 1), st.uuids()), min_size=1
    )
)
def test_listed_keys_are_sorted_by_upload_time(uploads: list[tuple[int, int, UUID]]) -> None:
    keys = sorted(object_key(*each) for each in uploads)
    times = [parse_object_key(key)[0] for key in keys]
    assert times == sorted(ms for ms, _, _ in uploads)
    for ms, broker_id, uuid in uploads:
        assert parse_object_key(object_key(ms, broker_id, uuid)) == (ms, broker_id)


def test_key_prefix_separates_older_keys_from_newer_ones() -> None:
    older, newer = object_key(999, 1, ID), object_key(1000, 1, ID)
    assert older < key_prefix(1000) < newer


@pytest.mark.parametrize(
    "key",
    [
        "",
        f"1700000000123-7-{ID}",
        f"diskless/170000000123-7-{ID}",
        f"diskless/1700000000123--7-{ID}",
        f"diskless/1700000000123-7-{ID}.log",
        f"diskless/1700000000123-7-{str(ID).upper()}",
        f"diskless/1700000000123-7-{ID}\n",
        "diskless/1700000000123-7-",
    ],
)
def test_other_names_are_not_parsed(key: str) -> None:
    with pytest.raises(ValueError, match="is not the key"):
        parse_object_key(key)


@pytest.mark.parametrize(("ms", "broker_id"), [(-1, 1), (10**13, 1), (0, -1)])
def test_key_for_invalid_time_or_broker_is_refused(ms: int, broker_id: int) -> None:
    with pytest.raises(ValueError, match="no object key"):
        object_key(ms, broker_id, ID)
