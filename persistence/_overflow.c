/* Verifies the header of a large value's first page. See overflowpages.py for the rules and the same in Python.

A checkpoint waits for this at each node that it deletes: 0.2 microseconds; in Python, 2 microseconds. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HEAD 16      /* number u64 | pad u16 | flags u16 | pages u32, where the first half of "pages" is the lower one */
#define OVERFLOW 4

/* sound(value, base, bytes, page_size): return whether LMDB frees the value's own pages. ``base``: address of the map;
``bytes``: its size. True if the value is not in the map, or is in the page of its key. */
static PyObject *overflow_sound(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    (void)self;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "four arguments are needed");
        return NULL;
    }
    uint64_t base = PyLong_AsUnsignedLongLong(args[1]), bytes = PyLong_AsUnsignedLongLong(args[2]);
    uint64_t page_size = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint64_t at = (uint64_t)(uintptr_t)view.buf - base - HEAD, size = (uint64_t)view.len;
    int sound = 1;
    if (page_size && at && at < bytes && at % page_size == 0) { /* below the map, the difference is huge */
        uint64_t number;
        uint16_t flags, low, high;
        const char *head = (const char *)view.buf - HEAD;
        memcpy(&number, head, 8);
        memcpy(&flags, head + 10, 2);
        memcpy(&low, head + 12, 2);
        memcpy(&high, head + 14, 2);
        sound = number == at / page_size && flags == OVERFLOW
            && ((uint64_t)high << 16 | low) == (HEAD + size - 1) / page_size + 1;
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(sound);
}

static PyMethodDef functions[] = {
    {"sound", (PyCFunction)(void (*)(void))overflow_sound, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_overflow", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__overflow(void)
{
    return PyModuleDef_Init(&module);
}
