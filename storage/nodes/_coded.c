/* Encodes, searches, and decodes the rows of coded nodes. See coded.py for the format and codedrows.py for Python.

Rule 1: encode() verifies that read() returns the same bytes: it decodes its result and compares.
Rule 2: for any body, no bytes outside of it are read, and none outside of the reply are written. Invalid bytes raise
        CorruptError. Lengths and counts are checked in opened(), and codes where they are used.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_codedread.h"
#include "_codedwrite.h"

/* -- reading ----------------------------------------------------------------------------------------------------- */

static int wanted(PyObject *const *args, Py_ssize_t count, Rows *rows, uint32_t *lo, uint32_t *hi)
{
    char *blob;
    Py_ssize_t size;
    long from, to;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "three arguments are needed");
        return -1;
    }
    if (PyBytes_AsStringAndSize(args[0], &blob, &size) < 0)
        return -1;
    from = PyLong_AsLong(args[1]);
    to = PyLong_AsLong(args[2]);
    if (PyErr_Occurred())
        return -1;
    if (opened(rows, (const uint8_t *)blob, size) < 0)
        return -1;
    if (from < 0 || to > (long)rows->count || from > to) {
        PyErr_SetString(PyExc_IndexError, "no such entries");
        return -1;
    }
    *lo = (uint32_t)from;
    *hi = (uint32_t)to;
    return 0;
}

static uint64_t room_for(const Rows *rows, uint32_t entries)
{
    uint64_t room = entries * rows->longest;
    return room < rows->wire ? room : rows->wire;
}

static PyObject *read_entries(const Rows *rows, uint32_t lo, uint32_t hi, uint32_t *ends)
{
    uint64_t room = room_for(rows, hi - lo);
    PyObject *wire = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room + rows->longest));
    if (wire == NULL)
        return NULL;
    int64_t size = put_entries(rows, lo, hi, (uint8_t *)PyBytes_AsString(wire), room, ends);
    if (size >= 0 && lo == 0 && hi == rows->count && size != (int64_t)rows->wire)
        size = bad("has not as many bytes as it says");
    if (size < 0) {
        Py_DECREF(wire);
        return NULL;
    }
    _PyBytes_Resize(&wire, (Py_ssize_t)size);
    return wire;
}

/* read(blob, lo, hi): return the wire form of entries lo to hi - 1. */
static PyObject *coded_read(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Rows rows;
    uint32_t lo, hi;
    (void)self;
    if (wanted(args, count, &rows, &lo, &hi) < 0)
        return NULL;
    return read_entries(&rows, lo, hi, NULL);
}

/* parts(blob, lo, hi): return the wire form, and the ends of its entries as an array of u32, as bytes. */
static PyObject *coded_parts(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Rows rows;
    uint32_t lo, hi;
    (void)self;
    if (wanted(args, count, &rows, &lo, &hi) < 0)
        return NULL;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(hi - lo) * 4), *wire, *pair;
    if (ends == NULL)
        return NULL;
    wire = read_entries(&rows, lo, hi, (uint32_t *)PyBytes_AsString(ends));
    pair = wire == NULL ? NULL : PyTuple_Pack(2, wire, ends);
    Py_XDECREF(wire);
    Py_DECREF(ends);
    return pair;
}

/* times(blob, lo, hi): return the ms and the sequence numbers of entries lo to hi - 1, as arrays of u64, as bytes. */
static PyObject *coded_times(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Rows rows;
    Id id = {0, 0};
    uint32_t lo, hi;
    (void)self;
    if (wanted(args, count, &rows, &lo, &hi) < 0)
        return NULL;
    PyObject *ms = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(hi - lo) * 8);
    PyObject *seq = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(hi - lo) * 8);
    PyObject *pair = ms == NULL || seq == NULL ? NULL : PyTuple_Pack(2, ms, seq);
    if (pair != NULL) {
        char *times = PyBytes_AsString(ms), *numbers = PyBytes_AsString(seq);
        if (lo < hi)
            before(&rows, lo, &id);
        for (uint32_t entry = lo; entry < hi; entry++) {
            if (next_id(&rows, entry, &id)) {
                Py_CLEAR(pair);
                break;
            }
            uint64_t both[2] = {rows.ms + id.ms, id.seq};
            memcpy(times + 8 * (size_t)(entry - lo), both, 8);
            memcpy(numbers + 8 * (size_t)(entry - lo), both + 1, 8);
        }
    }
    Py_XDECREF(ms);
    Py_XDECREF(seq);
    return pair;
}

/* raws(blob, lo, hi): return the IDs of entries lo to hi - 1, as 16 bytes each, big-endian. */
static PyObject *coded_raws(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Rows rows;
    Id id = {0, 0};
    uint32_t lo, hi;
    (void)self;
    if (wanted(args, count, &rows, &lo, &hi) < 0)
        return NULL;
    PyObject *raws = PyList_New((Py_ssize_t)(hi - lo));
    if (raws != NULL && lo < hi)
        before(&rows, lo, &id);
    for (uint32_t entry = lo; raws != NULL && entry < hi; entry++) {
        PyObject *raw = next_id(&rows, entry, &id) ? NULL : PyBytes_FromStringAndSize(NULL, 16);
        if (raw == NULL) {
            Py_CLEAR(raws);
            break;
        }
        uint8_t *out = (uint8_t *)PyBytes_AS_STRING(raw);
        uint64_t ms = rows.ms + id.ms, seq = id.seq;
        for (int i = 7; i >= 0; i--, ms >>= 8, seq >>= 8) {
            out[i] = (uint8_t)ms;
            out[8 + i] = (uint8_t)seq;
        }
        PyList_SET_ITEM(raws, (Py_ssize_t)(entry - lo), raw);
    }
    return raws;
}

/* Return the narrowest array of unsigned numbers: u8 (if `bytes` is set), u32, or u64, as bytes. */
static PyObject *narrow(const uint64_t *numbers, uint32_t count, int bytes)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        most |= numbers[i];
    size_t width = bytes && most < 256 ? 1 : most >> 32 ? 8 : 4;
    PyObject *array = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(width * count));
    if (array == NULL)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(array);
    for (uint32_t i = 0; i < count; i++, out += width) {
        uint32_t shorter = (uint32_t)numbers[i];
        if (width == 1)
            *out = (uint8_t)shorter;
        else
            memcpy(out, width == 4 ? (const void *)&shorter : (const void *)(numbers + i), width);
    }
    return array;
}

/* columns(blob): the ms of all entries, less that of the first, as u32 or u64, and their sequence numbers as u8, u32 or
u64; both as bytes. */
static PyObject *coded_columns(PyObject *self, PyObject *blob)
{
    Rows rows;
    Id id = {0, 0};
    char *raw;
    Py_ssize_t size;
    (void)self;
    if (PyBytes_AsStringAndSize(blob, &raw, &size) < 0 || opened(&rows, (const uint8_t *)raw, size) < 0)
        return NULL;
    uint64_t *ms = PyMem_Malloc(rows.count * 2 * sizeof(uint64_t));
    if (ms == NULL)
        return PyErr_NoMemory();
    uint64_t *seq = ms + rows.count;
    PyObject *times = NULL, *numbers = NULL, *pair = NULL;
    uint32_t entry = 0;
    before(&rows, 0, &id);
    for (; entry < rows.count && !next_id(&rows, entry, &id); entry++) {
        ms[entry] = id.ms;
        seq[entry] = id.seq;
    }
    if (entry == rows.count) {
        times = narrow(ms, rows.count, 0);
        numbers = narrow(seq, rows.count, 1);
        if (times != NULL && numbers != NULL)
            pair = PyTuple_Pack(2, times, numbers);
        Py_XDECREF(times);
        Py_XDECREF(numbers);
    }
    PyMem_Free(ms);
    return pair;
}

/* find(blob, ms, seq): return the index of the first entry with at least this ID; the number of entries if there is none. */
static PyObject *coded_find(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Rows rows;
    char *blob;
    Py_ssize_t size;
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "three arguments are needed");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(args[0], &blob, &size) < 0)
        return NULL;
    uint64_t ms = PyLong_AsUnsignedLongLong(args[1]), seq = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred() || opened(&rows, (const uint8_t *)blob, size) < 0)
        return NULL;
    if (ms < rows.ms)
        return PyLong_FromLong(0);
    ms -= rows.ms;
    uint32_t at = first_ms(&rows, 0, rows.count, ms);
    if (!seq || at == rows.count || ms_of(&rows, at) != ms)
        return PyLong_FromLong((long)at);
    uint32_t stop = first_ms(&rows, at, rows.count, ms + 1);
    if (!rows.counted)
        return PyLong_FromLong((long)first_seq(&rows, at, stop, seq));
    uint64_t first = ms ? 0 : rows.seq;
    if (seq <= first)
        return PyLong_FromLong((long)at);
    return PyLong_FromLong(seq - first < stop - at ? (long)(at + (seq - first)) : (long)stop);
}

/* -- writing ----------------------------------------------------------------------------------------------------- */

/* encode(wire, ends, ms, seq): the blob, whose checksum is still to be written; None if these entries are not to be
coded. `ends` is an array of u32, `ms` and `seq` are arrays of u64, all of them in the machine's order of bytes. */
static PyObject *coded_encode(PyObject *self, PyObject *args)
{
    Py_buffer wire, ends, ms, seq;
    PyObject *blob = NULL;
    Ids ids = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*", &wire, &ends, &ms, &seq))
        return NULL;
    Py_ssize_t count = ends.len / 4;
    ids.ms = ms.buf;
    ids.seq = seq.buf;
    if (count < 1 || count > MOST_ENTRIES || wire.len / count > LONGEST_ENTRY || ms.len != 8 * count ||
        seq.len != 8 * count || ends.len != 4 * count) {
        Py_INCREF(Py_None);
        blob = Py_None;
    } else
        blob = encoded(&wire, &ends, &ids, (uint32_t)count);
    PyBuffer_Release(&wire);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&ms);
    PyBuffer_Release(&seq);
    return blob;
}

/* The entries of a list of wire, ms and seq of each, as arrays in `room`. False if these entries are not to be coded, or
the list is none of these (with an error). */
static int listed(PyObject *list, Py_ssize_t count, uint8_t *room, Py_buffer *wire, Py_buffer *ends, Ids *ids, Py_ssize_t *largest)
{
    uint8_t *ms = room, *seq = ms + 8 * count, *end = seq + 8 * count, *at = end + 4 * count;
    ids->ms = ms;
    ids->seq = seq;
    ends->buf = end;
    wire->buf = at;
    for (Py_ssize_t entry = 0; entry < count; entry++) {
        PyObject *bytes = PyList_GET_ITEM(list, 3 * entry);
        uint64_t id[2] = {
            PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, 3 * entry + 1)),
            PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, 3 * entry + 2)),
        };
        if (PyErr_Occurred())
            return 0;
        memcpy(at, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
        at += PyBytes_GET_SIZE(bytes);
        if (PyBytes_GET_SIZE(bytes) > *largest)
            *largest = PyBytes_GET_SIZE(bytes);
        memcpy(ms + 8 * entry, id, 8);
        memcpy(seq + 8 * entry, id + 1, 8);
        uint32_t here = (uint32_t)(at - (uint8_t *)wire->buf);
        memcpy(end + 4 * entry, &here, 4);
    }
    return 1;
}

/* encode_list(list): what encode() returns for a list of wire, ms and seq of each entry, and the bytes of the largest
wire. */
static PyObject *coded_encode_list(PyObject *self, PyObject *list)
{
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) / 3 : 0, total = 0, largest = 0;
    (void)self;
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != 3 * count) {
        PyErr_SetString(PyExc_TypeError, "a list of wire, ms and seq of each entry is needed");
        return NULL;
    }
    for (Py_ssize_t entry = 0; entry < count; entry++) {
        PyObject *bytes = PyList_GET_ITEM(list, 3 * entry);
        if (!PyBytes_Check(bytes)) {
            PyErr_SetString(PyExc_TypeError, "the wire of an entry is bytes");
            return NULL;
        }
        total += PyBytes_GET_SIZE(bytes);
    }
    if (count < 1 || count > MOST_ENTRIES || total / count > LONGEST_ENTRY)
        Py_RETURN_NONE;
    uint8_t *room = PyMem_Malloc((size_t)(20 * count + total));
    if (room == NULL)
        return PyErr_NoMemory();
    Py_buffer wire = {.len = total}, ends = {.len = 4 * count};
    Ids ids = {0};
    PyObject *blob = NULL, *both;
    if (listed(list, count, room, &wire, &ends, &ids, &largest))
        blob = encoded(&wire, &ends, &ids, (uint32_t)count);
    PyMem_Free(room);
    if (blob == NULL || blob == Py_None)
        return blob;
    both = Py_BuildValue("Nn", blob, largest);
    return both;
}

/* -- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"columns", coded_columns, METH_O, NULL},
    {"encode", coded_encode, METH_VARARGS, NULL},
    {"encode_list", coded_encode_list, METH_O, NULL},
    {"find", (PyCFunction)(void (*)(void))coded_find, METH_FASTCALL, NULL},
    {"parts", (PyCFunction)(void (*)(void))coded_parts, METH_FASTCALL, NULL},
    {"raws", (PyCFunction)(void (*)(void))coded_raws, METH_FASTCALL, NULL},
    {"read", (PyCFunction)(void (*)(void))coded_read, METH_FASTCALL, NULL},
    {"times", (PyCFunction)(void (*)(void))coded_times, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_coded", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__coded(void)
{
    return PyModuleDef_Init(&module);
}
