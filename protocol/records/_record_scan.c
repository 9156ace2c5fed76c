/*
 * Scans the records of a batch without creating objects for them. `record_scan.py` documents the function and has
 * the same one in Python, for installations without a C compiler.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_cursor.h"

/* Bodies of more bytes are scanned without the GIL: they may take milliseconds. */
#define GIL_RELEASED_FROM (256 << 10)

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
