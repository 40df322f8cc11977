/* The frame of a section of a history object (docs/history-format.md) to entries as TRANGE sends them.

    sizes of the columns u32 x 3 | IDs | ordinals, if some entries were deleted | sizes | entries: *2\r\n $4\r\ncity ...
    --> *3\r\n $15\r\n1700000000000.0\r\n $4\r\ncity ...

Rule 1: the caller has verified the checksum of the section, and the size of the frame. Nothing outside of the frame is
        read even so: a frame that is not as specified is a ValueError.
Rule 2: an entry is left out if its ID is not in (after, end], its ordinal is below `first_ord`, or it is in a range of
        deleted ordinals.
*/

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define ID_ROOM 64  /* bytes of the largest ID as a bulk string, and of one more digit of the array's size */

typedef struct {
    const unsigned char *at, *end;
} Column64;

/* The next number of a column; 0 if there is none or it has more than 64 bits. */
static inline int next_number(Column64 *column, uint64_t *number)
{
    uint64_t value = 0;
    if (column->at < column->end && *column->at < 128) {
        *number = *column->at++;
        return 1;
    }
    for (int shift = 0; column->at < column->end && shift < 70; shift += 7) {
        unsigned char byte = *column->at++;
        if (shift == 63 && byte > 1)
            return 0;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *number = value;
            return 1;
        }
    }
    return 0;
}

static inline char *put_number(char *out, uint64_t number)
{
    if (number < 10) {
        *out++ = (char)('0' + number);
        return out;
    }
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count)
        *out++ = digits[--count];
    return out;
}

/* An ID as text. Consecutive entries often have the same milliseconds, whose 13 digits take most of the time. */
typedef struct {
    uint64_t ms;
    Py_ssize_t length;  /* of the milliseconds and the dot; 0: none yet */
    char text[48];
} IdText;

static inline char *put_id(char *out, IdText *id, uint64_t ms, uint64_t seq)
{
    if (id->ms != ms || !id->length) {
        char *end = put_number(id->text, ms);
        *end++ = '.';
        id->ms = ms;
        id->length = end - id->text;
    }
    Py_ssize_t length = put_number(id->text + id->length, seq) - id->text;
    *out++ = '$';
    out = put_number(out, (uint64_t)length);
    *out++ = '\r';
    *out++ = '\n';
    memcpy(out, id->text, (size_t)length);
    out += length;
    *out++ = '\r';
    *out++ = '\n';
    return out;
}

static inline uint32_t read_u32(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

typedef struct {
    uint64_t ms, seq;
} EntryId;

static inline int is_after(EntryId a, EntryId b)
{
    return a.ms > b.ms || (a.ms == b.ms && a.seq > b.seq);
}

typedef struct {
    EntryId after, end;
    uint64_t first_ord;
    const uint64_t *deleted;  /* start and end of each range, ascending */
    Py_ssize_t ranges;
} Wanted;

/* Write the entries of a frame. Returns the end of what was written; NULL if the frame is invalid. */
static char *section_entries(const unsigned char *frame, Py_ssize_t size, Py_ssize_t count, int has_ordinals,
                             uint64_t ms, uint64_t ordinal, const Wanted *wanted, char *out)
{
    if (size < 12)
        return NULL;
    const unsigned char *stop = frame + size, *at = frame + 12;
    Column64 columns[3];
    for (int i = 0; i < 3; i++) {
        uint32_t length = read_u32(frame + 4 * i);
        if (length > stop - at)
            return NULL;
        columns[i] = (Column64){at, at + length};
        at += length;
    }
    EntryId id = {ms, 0};
    IdText text = {0};
    Py_ssize_t range = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t ms_step, seq_step, ord_step = i ? 1 : 0, length;
        if (!next_number(&columns[0], &ms_step) || !next_number(&columns[0], &seq_step) ||
            (has_ordinals && !next_number(&columns[1], &ord_step)) || !next_number(&columns[2], &length) ||
            length > (uint64_t)(stop - at))
            return NULL;
        id.ms += ms_step;
        id.seq = ms_step ? seq_step : id.seq + seq_step;
        ordinal += ord_step;
        const unsigned char *entry = at;
        at += length;
        while (range < wanted->ranges && wanted->deleted[2 * range + 1] <= ordinal)
            range++;
        if (!is_after(id, wanted->after) || is_after(id, wanted->end) || ordinal < wanted->first_ord ||
            (range < wanted->ranges && wanted->deleted[2 * range] <= ordinal))
            continue;
        uint64_t words = 0;
        const unsigned char *digit = entry + 1;
        if (!length || *entry != '*')
            return NULL;
        for (; digit < at && *digit >= '0' && *digit <= '9' && digit - entry < 11; digit++)
            words = words * 10 + (*digit - '0');
        if (digit == entry + 1 || at - digit < 2 || digit[0] != '\r' || digit[1] != '\n')
            return NULL;
        digit += 2;
        *out++ = '*';
        out = put_number(out, words + 1);
        *out++ = '\r';
        *out++ = '\n';
        out = put_id(out, &text, id.ms, id.seq);
        memcpy(out, digit, (size_t)(at - digit));
        out += at - digit;
    }
    return at == stop && columns[0].at == columns[0].end && columns[2].at == columns[2].end ? out : NULL;
}

static PyObject *wire(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer frame, deleted;
    Py_ssize_t count;
    int has_ordinals;
    unsigned long long ms, ordinal, first_ord, after[2], end[2];
    if (!PyArg_ParseTuple(args, "y*npKKK(KK)(KK)y*", &frame, &count, &has_ordinals, &ms, &ordinal, &first_ord,
                          &after[0], &after[1], &end[0], &end[1], &deleted))
        return NULL;
    PyObject *made = NULL;
    if (count < 0 || count > frame.len || deleted.len % 16 || (uintptr_t)deleted.buf % sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "an argument is invalid");
    } else if (!(made = PyByteArray_FromStringAndSize(NULL, frame.len + ID_ROOM * count))) {
        /* MemoryError */
    } else {
        Wanted wanted = {{after[0], after[1]}, {end[0], end[1]}, first_ord, deleted.buf, deleted.len / 16};
        char *start = PyByteArray_AsString(made);
        char *stop = section_entries(frame.buf, frame.len, count, has_ordinals, ms, ordinal, &wanted, start);
        if (!stop)
            PyErr_SetString(PyExc_ValueError, "the entries of a section are not as specified");
        if (!stop || PyByteArray_Resize(made, stop - start))
            Py_CLEAR(made);
    }
    PyBuffer_Release(&frame);
    PyBuffer_Release(&deleted);
    return made;
}

static PyMethodDef functions[] = {
    {"wire", wire, METH_VARARGS, "The entries of a section as TRANGE sends them. See _section.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_section", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__section(void)
{
    return PyModuleDef_Init(&module);
}
