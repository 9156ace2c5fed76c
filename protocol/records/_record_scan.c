/*
 * Scans the records of a batch without creating objects for them. `record_scan.py` documents the function and has
 * the same one in Python, for installations without a C compiler.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Bodies of more bytes are scanned without the GIL: they may take milliseconds. */
#define GIL_RELEASED_FROM (256 << 10)

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

/* Skips bytes with a length before them; a negative length is null, as in Kafka. */
static inline int
skip_bytes(Cursor *cursor, int32_t *length)
{
    if (!read_int(cursor, length))
        return 0;
    if (*length > 0) {
        if (*length > cursor->end - cursor->at)
            return 0;
        cursor->at += *length;
    }
    return 1;
}

static PyObject *
scan_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "scan_records(body, record_count, base_timestamp)");
        return NULL;
    }
    long long count = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    int64_t base = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;

    Cursor body = {view.buf, (const uint8_t *)view.buf + view.len};
    int64_t latest = -1, earliest = INT64_MAX;
    long long keyless = 0, index = 0;
    int consecutive = 1;
    const char *fault = NULL;

    /* The buffer cannot be resized while `view` is held. */
    PyThreadState *thread = view.len > GIL_RELEASED_FROM ? PyEval_SaveThread() : NULL;
    for (; index < count; index++) {
        int32_t size, offset_delta, length, header_count;
        int64_t timestamp_delta;
        if (!read_int(&body, &size) || size < 0 || size > body.end - body.at) {
            fault = "is cut off";
            break;
        }
        Cursor record = {body.at, body.at + size};
        body.at = record.end;
        if (size == 0) {
            fault = "is cut off";
            break;
        }
        record.at++; /* attributes */
        if (!read_long(&record, &timestamp_delta) || !read_int(&record, &offset_delta)
            || !skip_bytes(&record, &length)) {
            fault = "is malformed";
            break;
        }
        keyless += length < 0;
        if (!skip_bytes(&record, &length) || !read_int(&record, &header_count)
            || header_count < 0 || header_count > record.end - record.at) {
            fault = "is malformed";
            break;
        }
        for (; header_count > 0; header_count--) {
            if (!skip_bytes(&record, &length) || length < 0 || !skip_bytes(&record, &length))
                break;
        }
        if (header_count > 0 || record.at != record.end) {
            fault = "is malformed";
            break;
        }
        consecutive &= offset_delta == index;
        int64_t timestamp = (int64_t)((uint64_t)base + (uint64_t)timestamp_delta);
        if (timestamp > latest)
            latest = timestamp;
        if (timestamp < earliest && timestamp != -1)
            earliest = timestamp;
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    long long left = body.end - body.at;
    PyBuffer_Release(&view);
    if (fault != NULL)
        return PyErr_Format(PyExc_ValueError, "record %lld of %lld %s", index, count, fault);
    if (left > 0)
        return PyErr_Format(PyExc_ValueError, "%lld bytes after the last record", left);
    return Py_BuildValue("LLLO", (long long)latest, (long long)earliest, keyless,
                         consecutive ? Py_True : Py_False);
}

static PyMethodDef methods[] = {
    {"scan_records", (PyCFunction)(void (*)(void))scan_records, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_record_scan", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__record_scan(void)
{
    return PyModule_Create(&definition);
}
