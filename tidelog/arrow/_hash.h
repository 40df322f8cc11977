/* The partition of a key: CRC-32, as zlib has it, modulo the number of partitions. See tidelog/topics/partition.py. */

#ifndef TIDELOG_HASH_H
#define TIDELOG_HASH_H

static uint32_t crc_table[256];

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++)
            rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
        crc_table[byte] = rest;
    }
}

static uint32_t crc32_of(const unsigned char *bytes, Py_ssize_t number)
{
    uint32_t rest = 0xFFFFFFFFu;
    for (Py_ssize_t i = 0; i < number; i++)
        rest = rest >> 8 ^ crc_table[(rest ^ bytes[i]) & 0xFF];
    return ~rest;
}

/* partitions(offsets, data, first, rows, count): the rows of a binary column, from `first` on, to uint32 numbers. */
static PyObject *partitions(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer offsets, data;
    Py_ssize_t first, rows, count;
    if (!PyArg_ParseTuple(arguments, "y*y*nnn", &offsets, &data, &first, &rows, &count))
        return NULL;
    PyObject *made = NULL;
    if (first < 0 || rows < 0 || count < 1 || count > UINT32_MAX || offsets.len / 4 - 1 < first
        || offsets.len / 4 - 1 - first < rows) {
        PyErr_SetString(PyExc_ValueError, "numbers that don't fit the column");
        goto end;
    }
    if (!(made = PyByteArray_FromStringAndSize(NULL, rows * 4)))
        goto end;
    const int32_t *at = (const int32_t *)offsets.buf + first;
    uint32_t *to = (uint32_t *)PyByteArray_AsString(made);
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (at[row] < 0 || at[row] > at[row + 1] || at[row + 1] > data.len) {
            PyErr_SetString(PyExc_ValueError, "offsets beyond the data of the column");
            Py_CLEAR(made);
            break;
        }
        to[row] = crc32_of((const unsigned char *)data.buf + at[row], at[row + 1] - at[row]) % (uint32_t)count;
    }
end:
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&data);
    return made;
}

#endif
