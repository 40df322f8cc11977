/* Columns in Arrow's memory layout, and the bytearrays that they are built in.

    binary column     offsets   int32[rows + 1], the first one 0; value i is data[offsets[i] .. offsets[i + 1]]
                      data      values, one after the other
                      valid     bits, lowest first: 1 where there is a value

Rule 1: a column holds at most 2^31 - 1 bytes or values: OverflowError. Pages end long before that.
Rule 2: a page gets the bytearrays themselves, not copies. They are not written again: the next page has others.
*/

#define FIRST_ROOM 1024

/* -- buffers: a bytearray that grows ------------------------------------------------------------------------------ */

typedef struct {
    PyObject *owner;  /* bytearray of `room` bytes; NULL until something is written */
    char *at;         /* its bytes */
    Py_ssize_t used, room;
    Py_ssize_t last;  /* bytes used in the page before: an estimate for this one */
} Buffer;

static int buffer_grow(Buffer *buffer, Py_ssize_t more)
{
    Py_ssize_t room = buffer->room ? buffer->room : FIRST_ROOM;
    if (!buffer->room && buffer->last + buffer->last / 8 > room)
        room = buffer->last + buffer->last / 8;
    if (more > PY_SSIZE_T_MAX / 4 - buffer->used) {
        PyErr_NoMemory();
        return -1;
    }
    while (room < buffer->used + more)
        room *= 2;
    if (!buffer->owner)
        buffer->owner = PyByteArray_FromStringAndSize(NULL, room);
    else if (PyByteArray_Resize(buffer->owner, room))
        return -1;
    if (!buffer->owner)
        return -1;
    buffer->at = PyByteArray_AsString(buffer->owner);
    buffer->room = room;
    return 0;
}

static inline int buffer_add(Buffer *buffer, const void *bytes, Py_ssize_t number)
{
    if ((buffer->room - buffer->used < number || !buffer->owner) && buffer_grow(buffer, number))
        return -1;
    memcpy(buffer->at + buffer->used, bytes, (size_t)number);
    buffer->used += number;
    return 0;
}

/* The bytearray, cut to what was written: a new reference. The buffer is empty afterwards. */
static PyObject *buffer_take(Buffer *buffer)
{
    if (!buffer->owner)
        return PyByteArray_FromStringAndSize(NULL, 0);
    if (PyByteArray_Resize(buffer->owner, buffer->used))
        return NULL;
    PyObject *taken = buffer->owner;
    *buffer = (Buffer){.last = buffer->used};
    return taken;
}

static void buffer_drop(Buffer *buffer)
{
    Py_CLEAR(buffer->owner);
    *buffer = (Buffer){0};
}

/* -- columns ------------------------------------------------------------------------------------------------------ */

typedef struct {
    Buffer offsets, data, valid;
    Py_ssize_t rows, nulls;
    const char *name;  /* of a wanted field; memory of Rows.names */
    Py_ssize_t length;
    Py_ssize_t found;  /* word of the current entry that is its value; 0: none so far */
} Column;

/* Add the offset of the end of the last value. */
static inline int column_end(Column *column)
{
    int32_t end = (int32_t)column->data.used;
    return buffer_add(&column->offsets, &end, sizeof end);
}

static inline int column_add(Column *column, const char *bytes, Py_ssize_t number)
{
    if (number > INT32_MAX - column->data.used || column->rows == INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a column of more than 2^31 - 1 bytes or values");
        return -1;
    }
    if (!column->rows && column_end(column))
        return -1;
    column->rows++;
    return buffer_add(&column->data, bytes, number) || column_end(column) ? -1 : 0;
}

static inline int column_mark(Column *column, Py_ssize_t row, int there)
{
    if (row % 8 == 0 && buffer_add(&column->valid, "", 1))
        return -1;
    column->valid.at[row / 8] |= (char)(there << row % 8);
    column->nulls += !there;
    return 0;
}

/* (offsets, data, valid or None), a new reference. */
static PyObject *column_take(Column *column)
{
    PyObject *valid = NULL;
    if (!column->rows && column_end(column))
        return NULL;
    if (column->nulls)
        valid = buffer_take(&column->valid);
    else
        valid = Py_NewRef(Py_None);
    column->valid.used = 0;
    column->rows = column->nulls = 0;
    if (!valid)
        return NULL;
    PyObject *offsets = buffer_take(&column->offsets), *data = buffer_take(&column->data);
    PyObject *made = offsets && data ? PyTuple_Pack(3, offsets, data, valid) : NULL;
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    Py_DECREF(valid);
    return made;
}

static void column_drop(Column *column)
{
    buffer_drop(&column->offsets);
    buffer_drop(&column->data);
    buffer_drop(&column->valid);
}
