/* Writes the frame of a small batch to the WAL. See wal.py for the format and the same in Python.

A single client waits for this at each command. In Python, it takes seven calls, five objects, and 4,900 instructions, of
which the work itself is 600. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define HEAD 32
#define SUMMED 24    /* bytes of the head that its crc32 covers */
#define MOST 2048    /* bytes of records; see SMALL in wal.py */

/* crc32 as in zlib: for one byte and for four bytes at a time. */
static uint32_t table[4][256];

static void make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][byte] = crc;
    }
    for (int i = 1; i < 4; i++)
        for (int byte = 0; byte < 256; byte++)
            table[i][byte] = table[i - 1][byte] >> 8 ^ table[0][table[i - 1][byte] & 255];
}

static uint32_t crc32_of(const uint8_t *at, size_t size, uint32_t crc)
{
    crc = ~crc;
    for (; size >= 4; at += 4, size -= 4) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = table[3][crc & 255] ^ table[2][crc >> 8 & 255] ^ table[1][crc >> 16 & 255] ^ table[0][crc >> 24];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}

static void store(uint8_t *at, uint64_t number, int size)
{
    for (int i = 0; i < size; i++, number >>= 8)
        at[i] = (uint8_t)number;
}

/* write(fd, at, salt, offset, synced, batch): write the frame of at most MOST bytes of records, and return their crc32.
Raises OSError. */
static PyObject *frame_write(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint8_t frame[HEAD + MOST];
    char *batch;
    Py_ssize_t size;
    (void)self;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "six arguments are needed");
        return NULL;
    }
    int fd = (int)PyLong_AsLong(args[0]);
    long long at = PyLong_AsLongLong(args[1]);
    uint32_t salt = (uint32_t)PyLong_AsUnsignedLong(args[2]);
    uint64_t offset = PyLong_AsUnsignedLongLong(args[3]), synced = PyLong_AsUnsignedLongLong(args[4]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[5], &batch, &size) < 0)
        return NULL;
    if (size > MOST) {
        PyErr_SetString(PyExc_ValueError, "a batch that is not small");
        return NULL;
    }
    uint32_t crc = crc32_of((const uint8_t *)batch, (size_t)size, 0);
    memcpy(frame, "TF\0", 4);
    store(frame + 8, offset, 8);
    store(frame + 16, synced, 8);
    store(frame + 24, (uint64_t)size, 4);
    store(frame + 28, crc, 4);
    store(frame + 4, crc32_of(frame + HEAD - SUMMED, SUMMED, salt), 4);
    memcpy(frame + HEAD, batch, (size_t)size);

    size_t done = 0, whole = (size_t)(HEAD + size);
    while (done < whole) {
        ssize_t wrote;
        int why;
        Py_BEGIN_ALLOW_THREADS
        wrote = pwrite(fd, frame + done, whole - done, (off_t)at + (off_t)done);
        why = errno;
        Py_END_ALLOW_THREADS
        if (wrote >= 0)
            done += (size_t)wrote;
        else if (why != EINTR) {
            errno = why;
            return PyErr_SetFromErrno(PyExc_OSError);
        } else if (PyErr_CheckSignals())
            return NULL;
    }
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef functions[] = {
    {"write", (PyCFunction)(void (*)(void))frame_write, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frame", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frame(void)
{
    make_table();
    return PyModuleDef_Init(&module);
}
