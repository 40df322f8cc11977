/* The hash slots of keys, see slots.py.

Rule 1: one_slot() computes the slot of the first key only once, and not those of the keys that begin with its hash tag.
Rule 2: words that are not bytes are a TypeError. Positions outside of the list are no keys.
Rule 3: a table of served slots is 16384 bytes, one for each slot; 0: the slot is not served.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define SLOT_MASK 16383

static uint16_t table[256];  /* CRC16 (XMODEM) of each byte */

static void fill_table(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned crc = byte << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
        table[byte] = (uint16_t)crc;
    }
}

/* Returns the length of the beginning of a key up to the end of its hash tag; 0 if it has none. Sets the part that
counts for the slot. */
static Py_ssize_t tag_of(const char *key, Py_ssize_t size, const char **part, Py_ssize_t *part_size)
{
    const char *start = memchr(key, '{', (size_t)size);
    *part = key;
    *part_size = size;
    if (start == NULL)
        return 0;
    const char *end = memchr(start + 1, '}', (size_t)(key + size - start - 1));
    if (end == NULL || end == start + 1)
        return 0;
    *part = start + 1;
    *part_size = end - start - 1;
    return end + 1 - key;
}

static long slot_of_part(const char *part, Py_ssize_t size)
{
    uint16_t crc = 0;
    for (Py_ssize_t i = 0; i < size; i++)
        crc = (uint16_t)(crc << 8) ^ table[(crc >> 8) ^ (uint8_t)part[i]];
    return crc & SLOT_MASK;
}

static PyObject *py_slot_of(PyObject *self, PyObject *key)
{
    const char *part;
    Py_ssize_t size;
    (void)self;
    if (!PyBytes_CheckExact(key)) {
        PyErr_SetString(PyExc_TypeError, "a key is bytes");
        return NULL;
    }
    tag_of(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), &part, &size);
    return PyLong_FromLong(slot_of_part(part, size));
}

/* one_slot(words, first, step): the slot of the words at first, first + step ...; -1 if they have different ones, or if
there are none. */
static PyObject *py_one_slot(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "one_slot(words: list[bytes], first: int, step: int)");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), step = PyLong_AsSsize_t(args[2]), words = PyList_GET_SIZE(args[0]);
    if (PyErr_Occurred())
        return NULL;
    if (first < 0 || step < 1) {
        PyErr_SetString(PyExc_ValueError, "first is at least 0, and step at least 1");
        return NULL;
    }
    const char *head = NULL, *part;
    Py_ssize_t head_size = 0, tag = 0, size;
    long slot = -1;
    for (Py_ssize_t at = first; at < words; at = step > words - at ? words : at + step) {
        PyObject *key = PyList_GET_ITEM(args[0], at);
        if (!PyBytes_CheckExact(key)) {
            PyErr_SetString(PyExc_TypeError, "a key is bytes");
            return NULL;
        }
        const char *text = PyBytes_AS_STRING(key);
        Py_ssize_t length = PyBytes_GET_SIZE(key);
        if (head == NULL) {
            head = text;
            head_size = length;
            tag = tag_of(text, length, &part, &size);
            slot = slot_of_part(part, size);
            continue;
        }
        if (tag ? length >= tag && !memcmp(text, head, (size_t)tag)
                : length == head_size && !memcmp(text, head, (size_t)length))
            continue;
        tag_of(text, length, &part, &size);
        if (slot_of_part(part, size) != slot)
            return PyLong_FromLong(-1);
    }
    return PyLong_FromLong(slot);
}

/* Returns whether a word is equal to an upper-case one, ignoring the case of ASCII letters. */
static int is_word(PyObject *word, const char *upper, Py_ssize_t size)
{
    if (!PyBytes_CheckExact(word) || PyBytes_GET_SIZE(word) != size)
        return 0;
    const char *text = PyBytes_AS_STRING(word);
    for (Py_ssize_t i = 0; i < size; i++) {
        char letter = text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 32) : text[i];
        if (letter != upper[i])
            return 0;
    }
    return 1;
}

/* sole_key(words, keyword): the position of the last word but one, if the word before it is the keyword (in upper
case), and no other word after the first is equal to it; otherwise 0. */
static PyObject *py_sole_key(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2 || !PyList_CheckExact(args[0]) || !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "sole_key(words: list[bytes], keyword: bytes)");
        return NULL;
    }
    const char *keyword = PyBytes_AS_STRING(args[1]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[1]), at = PyList_GET_SIZE(args[0]) - 3;
    if (at < 1 || !is_word(PyList_GET_ITEM(args[0], at), keyword, size))
        return PyLong_FromLong(0);
    for (Py_ssize_t other = 1; other < at + 3; other++)
        if (other != at && is_word(PyList_GET_ITEM(args[0], other), keyword, size))
            return PyLong_FromLong(0);
    return PyLong_FromSsize_t(at + 1);
}

/* Returns whether the slot of a key is served; -1 with an exception if the key is not bytes. */
static int is_served(const char *served, PyObject *key, long *slot)
{
    const char *part;
    Py_ssize_t size;
    if (!PyBytes_CheckExact(key)) {
        PyErr_SetString(PyExc_TypeError, "a key is bytes");
        return -1;
    }
    tag_of(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), &part, &size);
    *slot = slot_of_part(part, size);
    return served[*slot] != 0;
}

static int is_table(PyObject *served)
{
    if (PyBytes_CheckExact(served) && PyBytes_GET_SIZE(served) == SLOT_MASK + 1)
        return 1;
    PyErr_SetString(PyExc_TypeError, "served has a byte for each slot");
    return 0;
}

/* unserved(served, words, first, step): the slot of the first word at first, first + step ... whose slot is not served;
-1 if there is none. With step 0, there is one word. */
static PyObject *py_unserved(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 4 || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "unserved(served: bytes, words: list[bytes], first: int, step: int)");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[2]), step = PyLong_AsSsize_t(args[3]), words = PyList_GET_SIZE(args[1]);
    if (PyErr_Occurred() || !is_table(args[0]))
        return NULL;
    if (first < 0 || step < 0) {
        PyErr_SetString(PyExc_ValueError, "first and step are at least 0");
        return NULL;
    }
    const char *served = PyBytes_AS_STRING(args[0]);
    if (step == 0)
        step = words;
    for (Py_ssize_t at = first; at < words; at = step > words - at ? words : at + step) {
        long slot;
        int found = is_served(served, PyList_GET_ITEM(args[1], at), &slot);
        if (found < 0)
            return NULL;
        if (!found)
            return PyLong_FromLong(slot);
    }
    return PyLong_FromLong(-1);
}

/* served_calls(served, calls, at, stop, first): the index, at most stop, of the first call from at on that is not a list
with a word at first, or the slot of this word is not served. */
static PyObject *py_served_calls(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 5 || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "served_calls(served: bytes, calls: list, at: int, stop: int, first: int)");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[2]), stop = PyLong_AsSsize_t(args[3]), first = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || !is_table(args[0]))
        return NULL;
    if (at < 0 || first < 0) {
        PyErr_SetString(PyExc_ValueError, "at and first are at least 0");
        return NULL;
    }
    const char *served = PyBytes_AS_STRING(args[0]);
    if (stop > PyList_GET_SIZE(args[1]))
        stop = PyList_GET_SIZE(args[1]);
    for (; at < stop; at++) {
        PyObject *call = PyList_GET_ITEM(args[1], at);
        long slot;
        if (!PyList_CheckExact(call) || first >= PyList_GET_SIZE(call))
            break;
        int found = is_served(served, PyList_GET_ITEM(call, first), &slot);
        if (found < 0)
            return NULL;
        if (!found)
            break;
    }
    return PyLong_FromSsize_t(at);
}

static PyMethodDef methods[] = {
    {"slot_of", py_slot_of, METH_O, NULL},
    {"one_slot", (PyCFunction)(void (*)(void))py_one_slot, METH_FASTCALL, NULL},
    {"sole_key", (PyCFunction)(void (*)(void))py_sole_key, METH_FASTCALL, NULL},
    {"unserved", (PyCFunction)(void (*)(void))py_unserved, METH_FASTCALL, NULL},
    {"served_calls", (PyCFunction)(void (*)(void))py_served_calls, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_slots", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__slots(void)
{
    fill_table();
    return PyModule_Create(&module);
}
