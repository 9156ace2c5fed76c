/*
 * Map from keys to their last offset. `offset_map.py` documents it and has the same one in Python, for installations
 * without a C compiler.
 *
 * An open-addressing table with 24 bytes per slot: 128 bits that identify the key, and the offset plus one, where 0 is
 * an empty slot. The number of slots is prime and each key has its own step, so that probing reaches every slot.
 * The 128 bits are SipHash-2-4 of the key with a random and secret seed, so that nobody can choose keys that collide.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "../../protocol/records/_cursor.h"

#define SLOTS_MAX 4294967291u /* the largest prime below 2^32 */
#define SEED_BYTES 16

typedef struct {
    uint64_t first, second;
    uint64_t offset_plus_one;
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *table;
    uint64_t slots;
    uint64_t size;
    uint64_t seed[2];
} OffsetMap;

/* SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein, 2012) */

#define ROTATED(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

static inline void
sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = ROTATED(v[1], 13) ^ v[0];
    v[3] = ROTATED(v[3], 16) ^ v[2];
    v[0] = ROTATED(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = ROTATED(v[1], 17) ^ v[2];
    v[3] = ROTATED(v[3], 21) ^ v[0];
    v[2] = ROTATED(v[2], 32);
}

static inline void
sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
}

static inline uint64_t
sip_result(uint64_t v[4])
{
    for (int round = 0; round < 4; round++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static void
hash_key(const uint64_t seed[2], const uint8_t *key, size_t size, uint64_t hash[2])
{
    uint64_t v[4] = {
        seed[0] ^ 0x736f6d6570736575u,
        seed[1] ^ 0x646f72616e646f6du ^ 0xee,
        seed[0] ^ 0x6c7967656e657261u,
        seed[1] ^ 0x7465646279746573u,
    };
    uint64_t word;
    size_t left = size;
    for (; left >= 8; left -= 8, key += 8) {
        memcpy(&word, key, 8);
        sip_word(v, word);
    }
    word = (uint64_t)size << 56;
    for (size_t byte = 0; byte < left; byte++)
        word |= (uint64_t)key[byte] << (8 * byte);
    sip_word(v, word);
    v[2] ^= 0xee;
    hash[0] = sip_result(v);
    v[1] ^= 0xdd;
    hash[1] = sip_result(v);
}

/* Slot of the key, or the empty slot where it belongs. At least one slot must be empty. */
static Slot *
find_slot(const OffsetMap *map, const uint64_t hash[2])
{
    uint64_t place = (hash[0] >> 32) * map->slots >> 32;
    const uint64_t step = ((hash[1] & 0xFFFFFFFFu) * (map->slots - 1) >> 32) + 1;
    for (;;) {
        Slot *slot = &map->table[place];
        if (slot->offset_plus_one == 0 || (slot->first == hash[0] && slot->second == hash[1]))
            return slot;
        place += step;
        if (place >= map->slots)
            place -= map->slots;
    }
}

/* Records of a batch */

typedef struct {
    Py_buffer view;
    Cursor body;
    long long count, index;
    int64_t base_offset, last_offset, previous;
} Records;

typedef struct {
    const uint8_t *start, *key;
    int32_t key_size; /* negative for a null key */
    int has_value;
    int64_t offset, timestamp_delta;
} Record;

static PyObject *
invalid_record(const Records *records, const char *fault)
{
    return PyErr_Format(PyExc_ValueError, "record %lld of %lld %s", records->index, records->count, fault);
}

/* Reads the next record; returns false with an exception if it is invalid. */
static int
next_record(Records *records, Record *record)
{
    int32_t size, offset_delta, value_size;
    record->start = records->body.at;
    if (!read_int(&records->body, &size) || size <= 0 || size > records->body.end - records->body.at) {
        invalid_record(records, "is cut off");
        return 0;
    }
    Cursor fields = {records->body.at + 1 /* attributes */, records->body.at + size};
    records->body.at = fields.end;
    if (!read_long(&fields, &record->timestamp_delta) || !read_int(&fields, &offset_delta)
        || !read_int(&fields, &record->key_size) || record->key_size > fields.end - fields.at) {
        invalid_record(records, "is malformed");
        return 0;
    }
    record->key = fields.at;
    if (record->key_size > 0)
        fields.at += record->key_size;
    if (!read_int(&fields, &value_size) || value_size > fields.end - fields.at) {
        invalid_record(records, "is malformed");
        return 0;
    }
    record->has_value = value_size >= 0;
    /* The sum may exceed 64 bits in an invalid batch, so it is computed without a sign: signed overflow is undefined. */
    record->offset = (int64_t)((uint64_t)records->base_offset + (uint64_t)(int64_t)offset_delta);
    if (offset_delta < 0 || record->offset > records->last_offset || record->offset <= records->previous) {
        invalid_record(records, "has an invalid offset");
        return 0;
    }
    records->previous = record->offset;
    records->index++;
    return 1;
}

static int
check_end(const Records *records)
{
    const Py_ssize_t left = records->body.end - records->body.at;
    if (left > 0)
        PyErr_Format(PyExc_ValueError, "%zd bytes after the last record", left);
    return left == 0;
}

static void
begin(Records *records)
{
    records->body = (Cursor){records->view.buf, (const uint8_t *)records->view.buf + records->view.len};
    records->index = 0;
    records->previous = records->base_offset - 1;
}

static PyObject *
put(OffsetMap *map, PyObject *args)
{
    Records records;
    Record record;
    long long base_offset, last_offset, first_offset, keys_max;
    if (!PyArg_ParseTuple(args, "y*LLLLL", &records.view, &records.count, &base_offset, &last_offset,
                          &first_offset, &keys_max))
        return NULL;
    records.base_offset = base_offset;
    records.last_offset = last_offset;
    begin(&records);
    uint64_t limit = keys_max < 0 ? 0 : (uint64_t)keys_max;
    if (limit > map->slots - 1)
        limit = map->slots - 1;

    PyObject *result = NULL;
    while (records.index < records.count) {
        if (!next_record(&records, &record))
            goto done;
        if (record.key_size < 0 || record.offset < first_offset)
            continue;
        if (map->size >= limit) {
            result = PyLong_FromLongLong(record.offset - 1);
            goto done;
        }
        uint64_t hash[2];
        hash_key(map->seed, record.key, record.key_size, hash);
        Slot *slot = find_slot(map, hash);
        if (slot->offset_plus_one == 0) {
            slot->first = hash[0];
            slot->second = hash[1];
            map->size++;
        }
        slot->offset_plus_one = (uint64_t)record.offset + 1;
    }
    if (check_end(&records))
        result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&records.view);
    return result;
}

static int
is_kept(const OffsetMap *map, const Record *record, int64_t covered_to, int removes_tombstones)
{
    if (record->offset > covered_to)
        return 1;
    if (record->key_size < 0 || (removes_tombstones && !record->has_value))
        return 0;
    uint64_t hash[2];
    hash_key(map->seed, record->key, record->key_size, hash);
    return (uint64_t)record->offset + 1 >= find_slot(map, hash)->offset_plus_one;
}

static PyObject *
filter(OffsetMap *map, PyObject *args)
{
    Records records;
    Record record;
    long long base_offset, last_offset, covered_to;
    int removes_tombstones;
    if (!PyArg_ParseTuple(args, "y*LLLLp", &records.view, &records.count, &base_offset, &last_offset,
                          &covered_to, &removes_tombstones))
        return NULL;
    records.base_offset = base_offset;
    records.last_offset = last_offset;
    begin(&records);

    long long kept = 0, without_key = 0;
    int has_tombstone = 0;
    int64_t latest = INT64_MIN;
    PyObject *rest = NULL, *result = NULL; /* `rest` are the bytes of the kept records, once one is removed */
    char *end = NULL;
    while (records.index < records.count) {
        if (!next_record(&records, &record))
            goto done;
        if (is_kept(map, &record, covered_to, removes_tombstones)) {
            kept++;
            has_tombstone |= !record.has_value;
            if (record.timestamp_delta > latest)
                latest = record.timestamp_delta;
            if (rest != NULL) {
                memcpy(end, record.start, records.body.at - record.start);
                end += records.body.at - record.start;
            }
        } else {
            without_key += record.key_size < 0;
            if (rest == NULL) {
                rest = PyBytes_FromStringAndSize(NULL, records.view.len);
                if (rest == NULL)
                    goto done;
                end = PyBytes_AS_STRING(rest);
                const Py_ssize_t before = record.start - (const uint8_t *)records.view.buf;
                memcpy(end, records.view.buf, before);
                end += before;
            }
        }
    }
    if (!check_end(&records))
        goto done;
    if (rest == NULL)
        rest = Py_NewRef(Py_None);
    else if (_PyBytes_Resize(&rest, end - PyBytes_AS_STRING(rest)) < 0)
        goto done;
    result = Py_BuildValue("LOLLO", kept, has_tombstone ? Py_True : Py_False, (long long)latest, without_key, rest);
done:
    Py_XDECREF(rest);
    PyBuffer_Release(&records.view);
    return result;
}

static uint64_t
prime_up_to(uint64_t number)
{
    for (;; number--) {
        uint64_t divisor = 2;
        while (divisor * divisor <= number && number % divisor != 0)
            divisor++;
        if (divisor * divisor > number)
            return number;
    }
}

static PyObject *
create(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    long long slots;
    Py_buffer seed;
    if (!PyArg_ParseTuple(args, "Ly*", &slots, &seed))
        return NULL;
    OffsetMap *map = NULL;
    if (seed.len < SEED_BYTES) {
        PyErr_Format(PyExc_ValueError, "a seed of %zd bytes, %d are needed", seed.len, SEED_BYTES);
        goto done;
    }
    map = (OffsetMap *)type->tp_alloc(type, 0);
    if (map == NULL)
        goto done;
    memcpy(map->seed, seed.buf, SEED_BYTES);
    map->slots = prime_up_to(slots < 2 ? 2 : slots > SLOTS_MAX ? SLOTS_MAX : (uint64_t)slots);
    map->table = PyMem_RawCalloc(map->slots, sizeof(Slot)); /* pages that are not used need no memory */
    if (map->table == NULL) {
        Py_CLEAR(map);
        PyErr_NoMemory();
    }
done:
    PyBuffer_Release(&seed);
    return (PyObject *)map;
}

static void
destroy(OffsetMap *map)
{
    PyTypeObject *type = Py_TYPE(map);
    PyMem_RawFree(map->table);
    type->tp_free(map);
    Py_DECREF(type);
}

static PyObject *
get_size(OffsetMap *map, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(map->size);
}

static PyObject *
get_slots(OffsetMap *map, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(map->slots);
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)put, METH_VARARGS, NULL},
    {"filter", (PyCFunction)filter, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"size", (getter)get_size, NULL, NULL, NULL},
    {"slots", (getter)get_slots, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, create},
    {Py_tp_dealloc, destroy},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "odradek.storage.compaction._offset_map.OffsetMap",
    .basicsize = sizeof(OffsetMap),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_offset_map", NULL, -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__offset_map(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&type_spec);
    if (type == NULL || PyModule_AddObjectRef(module, "OffsetMap", type) < 0)
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
