/* Prefetches the memory that commands and records of many keys will touch into the processor's caches, and parses the
records of appends.

With 100,000 streams an append waits for memory about ten times in sequence: for the slot of the key, its entry, the key,
the stream, its list, and the end of the list. A GET of one of a million strings waits five times: for the slot, the
entry, the key, the String object, and its bytes. If these are prefetched for 16 commands, the waits overlap.

Rule 1: fetch() changes nothing, and only dereferences objects of the table.
Rule 2: appends() reads nothing outside of the batch. It leaves records that it does not know to the caller.
Rule 3: the table of a dict is read directly only by versions of CPython whose layout is known. Other versions look up
each key, which waits for slot, entry, and key of one after another.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION)
#define KNOWN_LAYOUT
#endif

#define AT_ONCE 64   /* keys */
#define EMPTY -1     /* the number in a slot that was never used */
#define PROBES 4     /* of a key in the table; at most two are usual */
#define APPEND 1     /* see records.py: op u8, body u32, klen u32, ms u64, seq u64, key, wire; big-endian */
#define HEAD 25
#define LINE 64      /* bytes of a cache's line */

/* The attribute that commands need of a value: the append list of a stream (appendlist.py), the bytes of a String. */
typedef struct {
    const char *name;
    PyTypeObject *type;  /* NULL until a value with the attribute is found */
    Py_ssize_t offset;   /* of the attribute in the object */
} Needed;

static Needed streams = {"_append_list", NULL, 0}, strings = {"value", NULL, 0};
static PyTypeObject *other = NULL; /* of values without these attributes: each failed lookup takes 0.9 us */

/* Finds the offset of an attribute in objects, from the first one that has it. */
static int learned(Needed *needed, PyTypeObject *kind, PyObject *value)
{
    PyObject *part = PyObject_GetAttrString(value, needed->name);
    Py_ssize_t size = Py_TYPE(value)->tp_basicsize;
    PyErr_Clear();
    if (part != NULL && Py_IS_TYPE(part, kind)) {
        for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(PyObject *) <= size; at += sizeof(PyObject *)) {
            if (*(PyObject **)((char *)value + at) == part) {
                Py_XSETREF(needed->type, (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(value)));
                needed->offset = at;
                break;
            }
        }
    }
    Py_XDECREF(part);
    return part != NULL;
}

static void learn(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == streams.type || type == strings.type || type == other)
        return;
    if (!learned(&streams, &PyList_Type, value) && !learned(&strings, &PyBytes_Type, value))
        Py_XSETREF(other, (PyTypeObject *)Py_NewRef((PyObject *)type));
}

static inline PyObject *needed_of(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == streams.type)
        return *(PyObject **)((char *)value + streams.offset);
    return type == strings.type ? *(PyObject **)((char *)value + strings.offset) : NULL;
}

/* Each of these finds the values of keys, which it prefetches. Returns their number. */
static Py_ssize_t look_up(PyObject *table, PyObject *const *keys, Py_ssize_t count, PyObject **found)
{
    Py_ssize_t values = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PyDict_GetItemWithError(table, keys[i]);
        if (value == NULL) {
            PyErr_Clear();
            continue;
        }
        __builtin_prefetch(value, 1);
        __builtin_prefetch((char *)value + LINE, 1);
        found[values++] = value;
    }
    return values;
}

#ifdef KNOWN_LAYOUT
/* The table of a dict, as in CPython's pycore_dict.h: the slots have the numbers of entries, below 0 if they have none.
The entries follow the slots. */
typedef struct {
    Py_ssize_t references;
    uint8_t log_slots, log_bytes, kind;  /* log_bytes: of all slots; kind: 0 if keys are not only str */
    uint32_t version;
    Py_ssize_t usable, used;
    char slots[];
} Table;

typedef struct {
    Py_hash_t hash;
    PyObject *key, *value;
} Entry;

typedef struct {
    PyObject *key;
    size_t hash, rest, slot;  /* rest: of the hash, see CPython's dictobject.c */
    Py_ssize_t entry;
} Probe;

static inline const char *slot_at(const Table *table, size_t slot)
{
    return table->slots + (slot << (table->log_bytes - table->log_slots));
}

static inline Py_ssize_t entry_of(const Table *table, size_t slot)
{
    const char *at = slot_at(table, slot);
    switch (table->log_bytes - table->log_slots) {
    case 0: return *(const int8_t *)at;
    case 1: return *(const int16_t *)at;
    case 2: return *(const int32_t *)at;
    default: return (Py_ssize_t)*(const int64_t *)at;
    }
}

/* All keys wait for their slots together, then for their entries, then for their values. A key is equal if its hash is. */
static Py_ssize_t probe(PyObject *dict, PyObject *const *keys, Py_ssize_t count, PyObject **found)
{
    const Table *table = (const Table *)((PyDictObject *)dict)->ma_keys;
    if (table->kind)
        return look_up(dict, keys, count, found);
    const Entry *entries = (const Entry *)(table->slots + ((size_t)1 << table->log_bytes));
    size_t mask = ((size_t)1 << table->log_slots) - 1;
    Probe probes[AT_ONCE];
    Py_ssize_t values = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t hash = (size_t)PyObject_Hash(keys[i]);
        probes[i] = (Probe){keys[i], hash, hash, hash & mask, 0};
        __builtin_prefetch(slot_at(table, hash & mask));
    }
    for (int round = 0; count && round < PROBES; round++) {
        Py_ssize_t left = 0, next = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t entry = entry_of(table, probes[i].slot);
            if (entry == EMPTY)
                continue;
            probes[left] = probes[i];
            probes[left++].entry = entry;
            if (entry >= 0)
                __builtin_prefetch(entries + entry);
        }
        for (Py_ssize_t i = 0; i < left; i++) {
            Probe one = probes[i];
            PyObject *value = one.entry >= 0 && (size_t)entries[one.entry].hash == one.hash
                ? entries[one.entry].value : NULL;
            if (value != NULL) {
                char *key = (char *)entries[one.entry].key;
                __builtin_prefetch(key);
                __builtin_prefetch(key + sizeof(PyBytesObject) + PyBytes_GET_SIZE(one.key) - 1);
                __builtin_prefetch(value, 1);
                __builtin_prefetch((char *)value + LINE, 1);
                found[values++] = value;
                continue;
            }
            one.rest >>= 5;
            one.slot = (5 * one.slot + one.rest + 1) & mask;
            __builtin_prefetch(slot_at(table, one.slot));
            probes[next++] = one;
        }
        count = next;
    }
    return values;
}
#else
#define probe look_up
#endif

static void fetch(PyObject *table, PyObject *const *keys, Py_ssize_t count)
{
    PyObject *found[AT_ONCE];
    Py_ssize_t values = probe(table, keys, count, found);
    if (values)
        learn(found[0]);
    for (Py_ssize_t i = 0; i < values; i++) {
        found[i] = needed_of(found[i]);
        if (found[i] != NULL) {
            __builtin_prefetch(found[i], 1);
            __builtin_prefetch((char *)found[i] + sizeof(PyBytesObject), 1);
        }
    }
    for (Py_ssize_t i = 0; i < values; i++) {
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
