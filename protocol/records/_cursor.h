/* Reads the fields of records without creating objects for them. */

#ifndef ODRADEK_CURSOR_H
#define ODRADEK_CURSOR_H

#include <stdint.h>

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* Reads an unsigned varint of at most `max_bits` bits; returns false if it is cut off or has more. */
static inline int
read_varint(Cursor *cursor, int max_bits, uint64_t *value)
{
    const uint8_t *at = cursor->at;
    uint64_t result = 0;
    for (int shift = 0; shift < max_bits; shift += 7) {
        if (at == cursor->end)
            return 0;
        const uint8_t byte = *at++;
        result |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (shift + 7 > max_bits && byte >> (max_bits - shift))
                return 0;
            cursor->at = at;
            *value = result;
            return 1;
        }
    }
    return 0;
}

static inline int
read_int(Cursor *cursor, int32_t *value)
{
    const uint8_t *at = cursor->at;
    uint64_t raw;
    if (cursor->end - at >= 2 && at[0] < 0x80) {
        raw = at[0];
        cursor->at = at + 1;
    } else if (cursor->end - at >= 2 && at[1] < 0x80) {
        raw = (at[0] & 0x7F) | (uint32_t)at[1] << 7;
        cursor->at = at + 2;
    } else if (!read_varint(cursor, 32, &raw)) {
        return 0;
    }
    uint32_t low = (uint32_t)raw;
    *value = (int32_t)((low >> 1) ^ (0 - (low & 1)));
    return 1;
}

static inline int
read_long(Cursor *cursor, int64_t *value)
{
    uint64_t raw;
    if (cursor->at < cursor->end && *cursor->at < 0x80)
        raw = *cursor->at++;
    else if (!read_varint(cursor, 64, &raw))
        return 0;
    *value = (int64_t)((raw >> 1) ^ (0 - (raw & 1)));
    return 1;
}

#endif
