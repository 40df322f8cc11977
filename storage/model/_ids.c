/* Converts IDs to 16 bytes each, big-endian, for lists of messages: the IDs of entries of a node, and IDs that a client
sent. Creating a Python object per number and a call per ID takes ten times as long. See ids.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define SIZE 16
#define SAFE 19    /* digits that always fit into 64 bits */

static void put(uint8_t *at, uint64_t ms, uint64_t seq)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    ms = __builtin_bswap64(ms);
    seq = __builtin_bswap64(seq);
#endif
    memcpy(at, &ms, 8);
    memcpy(at + 8, &seq, 8);
}

/* Element `i` of an array of unsigned numbers. */
static uint64_t element(const Py_buffer *column, Py_ssize_t i)
{
    switch (column->itemsize) {
    case 1: return ((const uint8_t *)column->buf)[i];
    case 2: return ((const uint16_t *)column->buf)[i];
    case 4: return ((const uint32_t *)column->buf)[i];
    default: return ((const uint64_t *)column->buf)[i];
    }
}

static int usable(const Py_buffer *column, Py_ssize_t hi)
{
    Py_ssize_t width = column->itemsize;
    if ((width != 1 && width != 2 && width != 4 && width != 8) || column->len / width < hi) {
        PyErr_SetString(PyExc_IndexError, "no such entries");
        return 0;
    }
    return 1;
}

/* raws(base, ms, seq, lo, hi): return the IDs of entries lo to hi - 1. The arrays (u8 to u64) contain the ms minus `base`,
and the sequence numbers. */
static PyObject *ids_raws(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer ms, seq;
    PyObject *raws = NULL;
    (void)self;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "five arguments are needed");
        return NULL;
    }
    uint64_t base = PyLong_AsUnsignedLongLong(args[0]);
    Py_ssize_t lo = PyLong_AsSsize_t(args[3]), hi = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (lo < 0 || lo > hi) {
        PyErr_SetString(PyExc_IndexError, "no such entries");
        return NULL;
    }
    if (PyObject_GetBuffer(args[1], &ms, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[2], &seq, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&ms);
        return NULL;
    }
    if (usable(&ms, hi) && usable(&seq, hi))
        raws = PyList_New(hi - lo);
    for (Py_ssize_t i = lo; raws != NULL && i < hi; i++) {
        PyObject *raw = PyBytes_FromStringAndSize(NULL, SIZE);
        if (raw == NULL) {
            Py_CLEAR(raws);
            break;
        }
        put((uint8_t *)PyBytes_AS_STRING(raw), base + element(&ms, i), element(&seq, i));
        PyList_SET_ITEM(raws, i - lo, raw);
    }
    PyBuffer_Release(&ms);
    PyBuffer_Release(&seq);
    return raws;
}

/* Parse a number of 1 to 20 digits and advance `at`. Return 0 if there is none, or it is too large. */
static int number(const char **at, const char *end, uint64_t *value)
{
    const char *begin = *at, *p = begin, *stop = end - begin > SAFE ? begin + SAFE : end;
    uint64_t sum = 0;
    unsigned digit;
    for (; p < stop && (digit = (unsigned)(*p - '0')) < 10; p++)
        sum = 10 * sum + digit;
    if (p - begin == SAFE && p < end && (digit = (unsigned)(*p - '0')) < 10) {
        if (sum > (UINT64_MAX - digit) / 10)
            return 0;
        sum = 10 * sum + digit;
        p++;
    }
    *at = p;
    *value = sum;
    return p > begin;
}

/* parsed(texts, start): return the IDs in a list of bytes from `start` on: ms.seq, ms-seq, or ms for ms.0. None if one is
invalid. */
static PyObject *ids_parsed(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a list and a number are needed");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), total = PyList_GET_SIZE(args[0]);
    if (start < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "no such text");
        return NULL;
    }
    PyObject *raws = PyList_New(start < total ? total - start : 0);
    for (Py_ssize_t i = start; raws != NULL && i < total; i++) {
        char *text;
        Py_ssize_t size;
        uint64_t ms, seq = 0;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(args[0], i), &text, &size) < 0) {
            Py_CLEAR(raws);
            break;
        }
        const char *at = text, *end = text + size;
        int whole = number(&at, end, &ms);
        if (whole && at < end)
            whole = (*at == '.' || *at == '-') && (++at, number(&at, end, &seq)) && at == end;
        if (!whole) {
            Py_DECREF(raws);
            Py_RETURN_NONE;
        }
        PyObject *raw = PyBytes_FromStringAndSize(NULL, SIZE);
        if (raw == NULL) {
            Py_CLEAR(raws);
            break;
        }
        put((uint8_t *)PyBytes_AS_STRING(raw), ms, seq);
        PyList_SET_ITEM(raws, i - start, raw);
    }
    return raws;
}

static PyMethodDef functions[] = {
    {"parsed", (PyCFunction)(void (*)(void))ids_parsed, METH_FASTCALL, NULL},
    {"raws", (PyCFunction)(void (*)(void))ids_raws, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ids", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ids(void)
{
    return PyModuleDef_Init(&module);
}
