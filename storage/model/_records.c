/* Packs the records of group reads and acknowledgements. See records.py for the format and the same in Python. A single
reader waits for them at each command, and packing their numbers separately takes as long as all other work for the group.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HEAD 5        /* size of a record's head: op and body size */
#define ID 16

enum { DELIVER = 9, ACK = 10, OWN = 26 };

static PyObject *shift;  /* 64 */

static uint8_t *put(uint8_t *at, uint64_t number, int size)
{
    for (int i = size - 1; i >= 0; i--, number >>= 8)
        at[i] = (uint8_t)number;
    return at + size;
}

static uint8_t *put_bytes(uint8_t *at, PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    memcpy(at, PyBytes_AS_STRING(bytes), size);
    return at + size;
}

static uint8_t *put_ids(uint8_t *at, PyObject *ids)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ids); i++) {
        at = put_bytes(at, PyList_GET_ITEM(ids, i));
    }
    return at;
}

/* A number of 128 bits. */
static int id_of(PyObject *number, uint8_t *raw)
{
    PyObject *high = PyNumber_Rshift(number, shift);
    if (high == NULL)
        return -1;
    put(raw, PyLong_AsUnsignedLongLong(high), 8);
    put(raw + 8, PyLong_AsUnsignedLongLongMask(number), 8);
    Py_DECREF(high);
    return PyErr_Occurred() ? -1 : 0;
}

static int number_of(PyObject *object, int bits, uint64_t *number)
{
    *number = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred())
        return -1;
    if (bits < 64 && *number >> bits) {
        PyErr_SetString(PyExc_OverflowError, "a number that a record has no room for");
        return -1;
    }
    return 0;
}

static int are_bytes(PyObject *one, PyObject *other)
{
    if (PyBytes_Check(one) && PyBytes_Check(other))
        return 1;
    PyErr_SetString(PyExc_TypeError, "bytes are needed");
    return 0;
}

/* Add the size of a list of IDs to `total`. */
static int are_ids(PyObject *ids, Py_ssize_t *total)
{
    int good = PyList_Check(ids);
    for (Py_ssize_t i = 0; good && i < PyList_GET_SIZE(ids); i++) {
        PyObject *id = PyList_GET_ITEM(ids, i);
        good = PyBytes_Check(id);
        *total += good ? PyBytes_GET_SIZE(id) : 0;
    }
    if (!good)
        PyErr_SetString(PyExc_TypeError, "a list of bytes is needed");
    return good;
}

/* Create a record with its op, size, and the lengths of key and group, and set `at` to the position after these.
`fixed`: bytes between HEAD and key; `ids`: size of the IDs. */
static PyObject *begun(int op, int fixed, PyObject *key, PyObject *group, Py_ssize_t ids, uint8_t **at)
{
    Py_ssize_t body = fixed + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(group) + ids;
    if ((uint64_t)body >> 32) {
        PyErr_SetString(PyExc_OverflowError, "a record that is too large");
        return NULL;
    }
    PyObject *record = PyBytes_FromStringAndSize(NULL, HEAD + body);
    if (record == NULL)
        return NULL;
    *at = (uint8_t *)PyBytes_AS_STRING(record);
    *(*at)++ = (uint8_t)op;
    *at = put(*at, (uint64_t)body, 4);
    *at = put(*at, (uint64_t)PyBytes_GET_SIZE(key), 4);
    *at = put(*at, (uint64_t)PyBytes_GET_SIZE(group), 4);
    return record;
}

/* deliver(key, group, offset, now, retry, expire at, max deliveries, flags, new): without a dead-letter key. */
static PyObject *records_deliver(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint8_t offset[ID], *at;
    uint64_t now, retry, expire, most, flags;
    Py_ssize_t total = 0;
    (void)self;
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "nine arguments are needed");
        return NULL;
    }
    PyObject *key = args[0], *group = args[1], *ids = args[8];
    if (!are_bytes(key, group) || !are_ids(ids, &total) || id_of(args[2], offset) < 0 || number_of(args[3], 64, &now) < 0 ||
        number_of(args[4], 64, &retry) < 0 || number_of(args[5], 64, &expire) < 0 ||
        number_of(args[6], 32, &most) < 0 || number_of(args[7], 8, &flags) < 0)
        return NULL;
    PyObject *record = begun(DELIVER, 69, key, group, total, &at);
    if (record == NULL)
        return NULL;
    at = put(at, 0, 4);
    memcpy(at, offset, ID);
    at = put(at + ID, now, 8);
    at = put(at, retry, 8);
    at = put(at, expire, 8);
    at = put(at, most, 4);
    at = put(at, flags, 1);
    at = put(at, (uint64_t)PyList_GET_SIZE(ids), 4);
    at = put(at, 0, 8);
    put_ids(put_bytes(put_bytes(at, key), group), ids);
    return record;
}

/* ack(key, group, IDs) */
static PyObject *records_ack(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint8_t *at;
    Py_ssize_t total = 0;
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "three arguments are needed");
        return NULL;
    }
    if (!are_bytes(args[0], args[1]) || !are_ids(args[2], &total))
        return NULL;
    PyObject *record = begun(ACK, 8, args[0], args[1], total, &at);
    if (record != NULL)
        put_ids(put_bytes(put_bytes(at, args[0]), args[1]), args[2]);
    return record;
}

/* own(key, group, number, flags, offset, entries read, last, now, count, new, again, gone) */
static PyObject *records_own(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint8_t offset[ID], *at;
    uint64_t number, flags, times[4];
    Py_ssize_t total = 0;
    (void)self;
    if (count != 12) {
        PyErr_SetString(PyExc_TypeError, "twelve arguments are needed");
        return NULL;
    }
    PyObject *key = args[0], *group = args[1], *const *ids = args + 9;
    if (!are_bytes(key, group) || !are_ids(ids[0], &total) || !are_ids(ids[1], &total) ||
        !are_ids(ids[2], &total) || id_of(args[4], offset) < 0 || number_of(args[2], 32, &number) < 0 ||
        number_of(args[3], 8, &flags) < 0)
        return NULL;
    times[0] = PyLong_AsUnsignedLongLongMask(args[5]);  /* all ones for -1: not known */
    if (PyErr_Occurred())
        return NULL;
    for (int i = 1; i < 4; i++)
        if (number_of(args[5 + i], 64, times + i) < 0)
            return NULL;
    PyObject *record = begun(OWN, 73, key, group, total, &at);
    if (record == NULL)
        return NULL;
    at = put(at, number, 4);
    at = put(at, flags, 1);
    memcpy(at, offset, ID);
    at += ID;
    for (int i = 0; i < 4; i++)
        at = put(at, times[i], 8);
    for (int i = 0; i < 3; i++)
        at = put(at, (uint64_t)PyList_GET_SIZE(ids[i]), 4);
    at = put_bytes(put_bytes(at, key), group);
    for (int i = 0; i < 3; i++)
        at = put_ids(at, ids[i]);
    return record;
}

static PyMethodDef functions[] = {
    {"ack", (PyCFunction)(void (*)(void))records_ack, METH_FASTCALL, NULL},
    {"deliver", (PyCFunction)(void (*)(void))records_deliver, METH_FASTCALL, NULL},
    {"own", (PyCFunction)(void (*)(void))records_own, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_records", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__records(void)
{
    shift = PyLong_FromLong(64);
    return shift == NULL ? NULL : PyModule_Create(&module);
}
