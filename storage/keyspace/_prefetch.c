/* Prefetches the memory that commands and records of many keys will touch into the processor's caches, and parses the
records of appends.

With 100,000 streams an append waits for memory about ten times in sequence: for the slot of the key, its entry, the key,
the stream, its list, and the end of the list. If these are prefetched for 16 appends, the waits overlap.

Rule 1: fetch() changes nothing, and only dereferences objects of the table.
Rule 2: appends() reads nothing outside of the batch. It leaves records that it does not know to the caller.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define AT_ONCE 64   /* keys */
#define APPEND 1     /* see records.py: op u8, body u32, klen u32, ms u64, seq u64, key, wire; big-endian */
#define HEAD 25
#define LINE 64      /* bytes of a cache's line */

static PyTypeObject *type = NULL;  /* of streams; until it is known, only the table is prefetched */
static Py_ssize_t offset = 0;       /* of the append list (appendlist.py) in a stream object */
static PyTypeObject *other = NULL; /* of a value without an append list: each failed lookup takes 0.9 us */

/* Finds the offset of the append list in stream objects, from the first stream that has a list. */
static void learn(PyObject *stream)
{
    PyObject *list = PyObject_GetAttrString(stream, "_append_list");
    Py_ssize_t size = Py_TYPE(stream)->tp_basicsize;
    PyErr_Clear();
    if (list == NULL)
        Py_XSETREF(other, (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(stream)));
    else if (PyList_CheckExact(list)) {
        for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(PyObject *) <= size; at += sizeof(PyObject *)) {
            if (*(PyObject **)((char *)stream + at) == list) {
                type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(stream));
                offset = at;
                break;
            }
        }
    }
    Py_XDECREF(list);
}

static void fetch(PyObject *table, PyObject *const *keys, Py_ssize_t count)
{
    PyObject *found[AT_ONCE];
    Py_ssize_t streams = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PyDict_GetItemWithError(table, keys[i]);
        if (value == NULL) {
            PyErr_Clear();
            continue;
        }
        __builtin_prefetch(value, 1);
        __builtin_prefetch((char *)value + LINE, 1);
        found[streams++] = value;
    }
    if (type == NULL && streams && Py_TYPE(found[0]) != other)
        learn(found[0]);
    if (type == NULL)
        return;
    for (Py_ssize_t i = 0; i < streams; i++) {
        PyObject *list = Py_TYPE(found[i]) == type ? *(PyObject **)((char *)found[i] + offset) : NULL;
        found[i] = list;
        if (list != NULL)
            __builtin_prefetch(list, 1);
    }
    for (Py_ssize_t i = 0; i < streams; i++) {
        PyListObject *list = (PyListObject *)found[i];
        if (list != NULL && PyList_CheckExact(list))
            __builtin_prefetch(list->ob_item + Py_SIZE(list), 1);
    }
}

/* fetch(table, commands, at, stop): what the commands from `at` to `stop` - 1, whose first argument is a key, will
touch. */
static PyObject *many_fetch(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *keys[AT_ONCE];
    Py_ssize_t wanted = 0;
    (void)self;
    if (count != 4 || !PyDict_CheckExact(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a dict, a list and two numbers are needed");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[2]), stop = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (stop > PyList_GET_SIZE(args[1]))
        stop = PyList_GET_SIZE(args[1]);
    for (; at >= 0 && at < stop && wanted < AT_ONCE; at++) {
        PyObject *argv = PyList_GET_ITEM(args[1], at);
        if (PyList_CheckExact(argv) && PyList_GET_SIZE(argv) > 1 && PyBytes_CheckExact(PyList_GET_ITEM(argv, 1)))
            keys[wanted++] = PyList_GET_ITEM(argv, 1);
    }
    fetch(args[0], keys, wanted);
    Py_RETURN_NONE;
}

static uint64_t number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    while (bytes--)
        value = value << 8 | *at++;
    return value;
}

/* appends(table, batch, at): the APPEND records that follow one another from `at` on, some of them at most, whose streams
are fetched. A list with key, ms, seq and wire of each, and where they end; the list is empty if there is none. */
static PyObject *many_appends(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *keys[AT_ONCE], *list;
    Py_ssize_t wanted = 0, size, at;
    char *text;
    (void)self;
    if (count != 3 || !PyDict_CheckExact(args[0]) || PyBytes_AsStringAndSize(args[1], &text, &size) < 0) {
        PyErr_SetString(PyExc_TypeError, "a dict, bytes and a number are needed");
        return NULL;
    }
    at = PyLong_AsSsize_t(args[2]);
    if (at < 0 || (list = PyList_New(0)) == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the offset is negative");
        return NULL;
    }
    while (wanted < AT_ONCE && at <= size - HEAD) {
        const uint8_t *raw = (const uint8_t *)text + at;
        uint64_t body = number(raw + 1, 4), length = number(raw + 5, 4);
        if (raw[0] != APPEND || body > (uint64_t)(size - at - 5) || body < HEAD - 5 + length)
            break;
        PyObject *key = PyBytes_FromStringAndSize((char *)raw + HEAD, (Py_ssize_t)length), *parts[4] = {
            key,
            PyLong_FromUnsignedLongLong(number(raw + 9, 8)),
            PyLong_FromUnsignedLongLong(number(raw + 17, 8)),
            PyBytes_FromStringAndSize((char *)raw + HEAD + length, (Py_ssize_t)(body - (HEAD - 5) - length)),
        };
        int failed = 0;
        for (int i = 0; i < 4; i++) {
            failed = failed || parts[i] == NULL || PyList_Append(list, parts[i]) < 0;
            Py_XDECREF(parts[i]);
        }
        if (failed) {
            Py_DECREF(list);
            return NULL;
        }
        keys[wanted++] = key;  /* the list holds it */
        at += 5 + (Py_ssize_t)body;
    }
    fetch(args[0], keys, wanted);
    return Py_BuildValue("Nn", list, at);
}

static PyMethodDef functions[] = {
    {"appends", (PyCFunction)(void (*)(void))many_appends, METH_FASTCALL, NULL},
    {"fetch", (PyCFunction)(void (*)(void))many_fetch, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_prefetch", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__prefetch(void)
{
    return PyModuleDef_Init(&module);
}
