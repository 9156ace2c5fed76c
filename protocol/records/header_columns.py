"""Decodes the headers of many record batches in a buffer to columns, one for each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from odradek.protocol.records.batch import HEADER_SIZE
from odradek.seams.files import Buffer

_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert _HEADER.itemsize == HEADER_SIZE


def header_columns(data: Buffer, starts: Sequence[int]) -> npt.NDArray[Any]:
    """Returns a row for each batch with the fields of its header, which are not checked.

    `starts` are the positions of the batches in `data`, which must contain each header completely.
    """
    if not starts:
        return np.empty(0, _HEADER)
    anywhere: npt.NDArray[Any] = np.ndarray(
        (len(data) - HEADER_SIZE + 1,), _HEADER, data, strides=(1,)
    )
    return anywhere[np.array(starts, np.int64)]
