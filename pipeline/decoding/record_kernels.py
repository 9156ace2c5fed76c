"""Compiled loops that decode records.

They take bytes and arrays of numbers and return numbers, and create no Python object for a record. Errors are
returned as a code and the batch's number, so that the caller can name the object. All reads are bounds-checked.
Validation is as strict as in `protocol.records`, so that both reject the same bytes.

numba caches compiled code in __pycache__, or in the user's cache directory if that is not writable.
"""

# Compiled by numba, which infers the types from the arguments.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, call-arg, var-annotated"

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

OK = 0
BAD_COUNT = 1
BAD_RECORD = 2
BAD_OFFSET = 3
LEFT_OVER = 4
BAD_HEADER = 5

WRONG = {
    BAD_COUNT: "the batch's record count is invalid",
    BAD_RECORD: "a record's length is invalid",
    BAD_OFFSET: "offsets do not increase within the batch",
    LEFT_OVER: "there are bytes after the last record",
    BAD_HEADER: "the lengths of a record's headers are invalid",
}

_RECORD_MIN_BYTES = 7


@intrinsic
def _byte(typing, data, at):
    """Return data[at], without numba's check for a negative index."""

    def emit(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte = builder.load(builder.gep(array.data, [arguments[1]]))
        return builder.zext(byte, context.get_value_type(types.int64))

    return types.int64(data, types.intp), emit


@njit(cache=True, nogil=True, inline="always")
def _varint(data, at, end):
    """Decode a zigzag varint; return (value, end). The end is -1 if it is cut short or longer than 64 bits."""
    if at >= end:
        return 0, -1
    byte = _byte(data, at)
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value = byte & 127
    shift = 7
    position = at + 1
    while position < end and shift < 70:
        byte = _byte(data, position)
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
    return 0, -1


@intrinsic
def _copy(typing, source, at, target, to, size):
    """Copy bytes with memcpy; a loop, which the compiler cannot prove not to overlap, takes five times as long."""

    def emit(context, builder, signature, arguments):
        source, at, target, to, size = arguments
        begin = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [index])
            for kind, array, index in (
                (signature.args[0], source, at),
                (signature.args[2], target, to),
            )
        ]
        cgutils.raw_memcpy(builder, begin[1], begin[0], size, 1)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), emit


@njit(cache=True, nogil=True, inline="always")
def _field(data, at, end, nullable):
    """Decode a length and as many bytes; return (length, begin, end). A negative length is null if `nullable`, as in Kafka.
    The end is -1 if the field is invalid.
    """
    length, begin = _varint(data, at, end)
    if begin < 0 or (length < 0 and not nullable) or length > end - begin:
        return length, begin, -1
    return length, begin, begin + max(length, 0)


@njit(cache=True, nogil=True, inline="always")
def _add(data, at, length, column, size):
    """Append a field's bytes to a column that has `size` bytes; return the new size."""
    fresh = max(length, 0)  # no branch: it makes the whole loop three times as slow
    _copy(data, at, column, size, fresh)
    return size + fresh


@njit(cache=True, nogil=True)
def _add_item(data, at, length, column, index, size):
    """Add an item, null if `length` is negative, to a column of `size` bytes; return the new size."""
    ends, nulls, items = column
    size = _add(data, at, length, items, size)
    ends[index] = size
    nulls[index] = length < 0
    return size


@njit(cache=True, nogil=True)
def decode_records(
    bodies, batches, limits, wanted, numbers, key_arrays, value_arrays, header_arrays
):
    """Decode the records of `batches`, whose `bodies` are (data, starts, ends).

    Only records with low <= offset < high and since <= timestamp < until are kept: `limits` are (low, high, since,
    until). `wanted` are three booleans: keys, values and headers. The output arrays are large enough for all records:
    `numbers` are (offsets, timestamps, timestamp types). For a variable-length column, `*_ends[i]` is the end of item
    i in the column's bytes, and `*_nulls[i]` is 1 for a null.

    Returns (number of kept records, number of headers, error, number of the batch with the error).
    """
    data, starts, ends = bodies
    low, high, since, until = limits
    want_key, want_value, want_headers = wanted
    offsets, timestamps, kinds = numbers
    header_counts, header_key_ends, header_keys = header_arrays[:3]
    header_value_arrays = header_arrays[3:]
    kept = 0
    key_size = 0
    value_size = 0
    headers = 0
    header_key_size = 0
    header_value_size = 0
    for number in range(len(batches)):
        batch = batches[number]
        position = starts[number]
        limit = ends[number]
        count = batch.count
        if count < 0 or np.int64(count) * _RECORD_MIN_BYTES > limit - position:
            return kept, headers, BAD_COUNT, number
        base_offset = batch.base_offset
        base_timestamp = batch.base_timestamp
        append_time = (batch.attributes & 8) != 0
        previous = base_offset - 1
        for _ in range(count):
            size, position = _varint(data, position, limit)
            if position < 0 or size < _RECORD_MIN_BYTES - 1 or size > limit - position:
                return kept, headers, BAD_RECORD, number
            end = position + size
            delta, position = _varint(data, position + 1, end)
            if position < 0:
                return kept, headers, BAD_RECORD, number
            timestamp = batch.max_timestamp if append_time else base_timestamp + delta
            delta, position = _varint(data, position, end)
            offset = base_offset + delta
            if position < 0 or offset <= previous or offset > batch.last_offset:
                return kept, headers, BAD_OFFSET, number
            previous = offset
            key_length, key_at, position = _field(data, position, end, True)
            if position < 0:
                return kept, headers, BAD_RECORD, number
            value_length, value_at, position = _field(data, position, end, True)
            if position < 0:
                return kept, headers, BAD_RECORD, number
            header_count, position = _varint(data, position, end)
            if position < 0 or header_count < 0 or header_count * 2 > end - position:
                return kept, headers, BAD_HEADER, number
            keep = low <= offset and offset < high and since <= timestamp and timestamp < until
            for _ in range(header_count):
                length, at, position = _field(data, position, end, False)
                if position < 0:
                    return kept, headers, BAD_HEADER, number
                if keep and want_headers:
                    header_key_size = _add(data, at, length, header_keys, header_key_size)
                    header_key_ends[headers] = header_key_size
                length, at, position = _field(data, position, end, True)
                if position < 0:
                    return kept, headers, BAD_HEADER, number
                if keep and want_headers:
                    header_value_size = _add_item(
                        data, at, length, header_value_arrays, headers, header_value_size
                    )
                    headers += 1
            if position != end:
                return kept, headers, BAD_RECORD, number
            if not keep:
                continue
            offsets[kept] = offset
            timestamps[kept] = timestamp
            kinds[kept] = append_time
            if want_key:
                key_size = _add_item(data, key_at, key_length, key_arrays, kept, key_size)
            if want_value:
                value_size = _add_item(data, value_at, value_length, value_arrays, kept, value_size)
            if want_headers:
                header_counts[kept] = headers
            kept += 1
        if position != limit:
            return kept, headers, LEFT_OVER, number
    return kept, headers, OK, 0
