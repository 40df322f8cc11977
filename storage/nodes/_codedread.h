/* Reading coded nodes. See coded.py for the format, and _coded.c for the rules. */

#ifndef TIDELOG_CODED_READ_H
#define TIDELOG_CODED_READ_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define BODY 32           /* the header of a blob, with its checksum */
#define HEAD 12           /* of a body, before its columns */
#define TAIL 8            /* zero bytes after the rows: a field is loaded as eight bytes */
#define MOST_COLUMNS 64
#define MOST_TEXTS 2048   /* of all columns together */
#define MOST_ENTRIES 65536
#define MOST_BITS 56      /* of a field, which may begin at any bit of a byte */
#define LONGEST_NUMBER 40
#define LONGEST_ID 50     /* with its header and CRLF */
#define SLACK 8           /* what put_bytes() may write beyond an entry */

enum { TEXTS, NUMBERS, NUMBERS_AND_MINUS_ZERO };

typedef struct {
    int kind, bits;
    uint32_t texts;           /* of a column of texts: how many, */
    uint32_t first;           /* and the place of its first one in Rows.ends */
    const uint8_t *sizes, *bytes;
    uint32_t size;            /* of the bytes of all its texts */
    int decimals, pad;        /* of a column of numbers */
    int minus;                /* code 0 is minus zero, and numbers begin with 1 */
    int64_t base;
} Column;

typedef struct {
    uint32_t count, wire;     /* entries, and bytes of them */
    uint64_t ms, seq;         /* the first ID */
    int counted;              /* sequence numbers count up by one from 0 in each ms, from `seq` in the first */
    int ms_bits, seq_bits;
    uint64_t seq_base, row_bits;
    const uint8_t *rows;
    int columns;
    Column column[MOST_COLUMNS];
    uint32_t ends[MOST_TEXTS]; /* of each text in its column's bytes */
    uint64_t longest;         /* upper bound of an entry's bytes */
} Rows;

/* -- bytes ------------------------------------------------------------------------------------------------------- */

static uint64_t load(const uint8_t *at, int size)
{
    uint64_t number = 0;
    while (size--)
        number = number << 8 | at[size];
    return number;
}

static uint64_t load8(const uint8_t *at)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t number;
    memcpy(&number, at, 8);
    return number;
#else
    return load(at, 8);
#endif
}

static void store(uint8_t *at, uint64_t number, int size)
{
    for (int i = 0; i < size; i++, number >>= 8)
        at[i] = (uint8_t)number;
}

static uint64_t mask(int bits)
{
    return ((uint64_t)1 << bits) - 1;
}

static int width(uint64_t number)
{
    int bits = 0;
    for (; number; number >>= 1)
        bits++;
    return bits;
}

static uint64_t field(const Rows *rows, uint64_t bit, int bits)
{
    return load8(rows->rows + (bit >> 3)) >> (bit & 7) & mask(bits);
}

/* -- a blob's parts ---------------------------------------------------------------------------------------------- */

/* Set CorruptError. The caller may have released the GIL. */
static int bad(const char *why)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *errors = PyImport_ImportModule("resp.errors");
    PyObject *damaged = errors == NULL ? NULL : PyObject_GetAttrString(errors, "CorruptError");
    if (damaged != NULL)
        PyErr_Format(damaged, "a coded node %s", why);
    Py_XDECREF(damaged);
    Py_XDECREF(errors);
    PyGILState_Release(state);
    return -1;
}

static const uint8_t *opened_texts(Rows *rows, Column *column, const uint8_t *at, const uint8_t *end, uint32_t *texts)
{
    uint32_t most = 0, total = 0;
    if (end - at < 6)
        return NULL;
    column->texts = (uint32_t)load(at, 2);
    column->size = (uint32_t)load(at + 2, 4);
    at += 6;
    if (!column->texts || column->texts > MOST_TEXTS - *texts)
        return NULL;
    if ((uint64_t)(end - at) < (uint64_t)column->texts + column->size)
        return NULL;
    column->sizes = at;
    column->bytes = at + column->texts;
    column->first = *texts;
    for (uint32_t i = 0; i < column->texts; i++) {
        total += column->sizes[i];
        if (column->sizes[i] > most)
            most = column->sizes[i];
        rows->ends[(*texts)++] = total;
    }
    if (total != column->size)
        return NULL;
    rows->longest += 1 + 3 + 2 + most + 2;
    return column->bytes + total;
}

static const uint8_t *opened_numbers(Rows *rows, Column *column, const uint8_t *at, const uint8_t *end)
{
    if (end - at < 10)
        return NULL;
    column->minus = column->kind == NUMBERS_AND_MINUS_ZERO;
    column->decimals = at[0];
    column->pad = at[1];
    column->base = (int64_t)load(at + 2, 8);
    if (column->decimals > 18 || column->pad < 1 || column->pad > 18)
        return NULL;
    if (column->base > 1000000000000000000 || column->base < -1000000000000000000)
        return NULL;
    rows->longest += 1 + 2 + 2 + LONGEST_NUMBER + 2;
    return at + 10;
}

/* Validate everything except the rows. Return -1 with an exception if the bytes are invalid. */
static int opened(Rows *rows, const uint8_t *blob, Py_ssize_t size)
{
    const uint8_t *at = blob + BODY, *end = blob + size;
    uint32_t texts = 0;
    if (size < BODY + HEAD + TAIL)
        return bad("is cut short");
    rows->count = (uint32_t)load(blob + 4, 4);
    rows->wire = (uint32_t)load(blob + 8, 4);
    rows->ms = load(blob + 12, 8);
    rows->seq = load(blob + 20, 8);
    rows->counted = !(blob[3] & 1);
    rows->ms_bits = at[0];
    rows->seq_bits = at[1];
    rows->columns = at[2];
    rows->seq_base = load(at + 4, 8);
    if (blob[3] > 1 || at[3] || !rows->count || rows->count > MOST_ENTRIES)
        return bad("has an impossible header");
    if (rows->ms_bits > MOST_BITS || rows->seq_bits > MOST_BITS || !rows->columns || rows->columns > MOST_COLUMNS)
        return bad("has impossible columns");
    if (rows->ms >> 63 || rows->seq_base >> 63 || (rows->counted && (rows->seq >> 63 || rows->seq_bits)))
        return bad("has impossible IDs");
    rows->row_bits = (uint64_t)(rows->ms_bits + rows->seq_bits);
    rows->longest = 6 + LONGEST_ID + SLACK;
    at += HEAD;
    for (int i = 0; i < rows->columns; i++) {
        Column *column = rows->column + i;
        if (end - at < 2)
            return bad("is cut short");
        column->kind = at[0];
        column->bits = at[1];
        rows->row_bits += at[1];
        if (column->bits > MOST_BITS || column->kind > NUMBERS_AND_MINUS_ZERO)
            return bad("has impossible columns");
        at = column->kind == TEXTS ? opened_texts(rows, column, at + 2, end, &texts)
                                   : opened_numbers(rows, column, at + 2, end);
        if (at == NULL)
            return bad("has impossible columns");
    }
    rows->rows = at;
    if ((uint64_t)(end - at) != (rows->count * rows->row_bits + 7) / 8 + TAIL)
        return bad("has not as many rows as entries");
    if (field(rows, 0, rows->ms_bits) || (!rows->counted && rows->seq_base + field(rows, (uint64_t)rows->ms_bits, rows->seq_bits) != rows->seq))
        return bad("begins with another entry");
    return 0;
}

/* -- IDs --------------------------------------------------------------------------------------------------------- */

static uint64_t ms_of(const Rows *rows, uint32_t entry)
{
    return field(rows, entry * rows->row_bits, rows->ms_bits);
}

static uint64_t stored_seq(const Rows *rows, uint32_t entry)
{
    return rows->seq_base + field(rows, entry * rows->row_bits + (uint64_t)rows->ms_bits, rows->seq_bits);
}

/* Return the first of entries lo to hi - 1 whose ms is at least `ms`; hi if there is none. */
static uint32_t first_ms(const Rows *rows, uint32_t lo, uint32_t hi, uint64_t ms)
{
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (ms_of(rows, middle) < ms)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static uint32_t first_seq(const Rows *rows, uint32_t lo, uint32_t hi, uint64_t seq)
{
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (stored_seq(rows, middle) < seq)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static uint64_t seq_at(const Rows *rows, uint32_t entry, uint64_t ms)
{
    if (!rows->counted)
        return stored_seq(rows, entry);
    return entry - first_ms(rows, 0, entry, ms) + (ms ? 0 : rows->seq);
}

/* Iterate over the IDs of entries. */
typedef struct {
    uint64_t ms, seq;
} Id;

static int next_id(const Rows *rows, uint32_t entry, Id *id)
{
    uint64_t ms = ms_of(rows, entry);
    if (ms < id->ms)
        return bad("has IDs that do not ascend");
    id->seq = !rows->counted ? stored_seq(rows, entry) : ms == id->ms ? id->seq + 1 : 0;
    id->ms = ms;
    return 0;
}

static void before(const Rows *rows, uint32_t entry, Id *id)
{
    id->ms = ms_of(rows, entry);
    id->seq = seq_at(rows, entry, id->ms) - 1;  /* may wrap: next_id() takes it back */
}

/* -- reading ----------------------------------------------------------------------------------------------------- */

static const char PAIRS[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/* Write the digits of a number before `end`. Return their start. */
static uint8_t *digits_before(uint8_t *end, uint64_t number)
{
    for (; number >> 32; number /= 100)
        memcpy(end -= 2, PAIRS + 2 * (number % 100), 2);
    uint32_t rest = (uint32_t)number;
    for (; rest >= 100; rest /= 100)
        memcpy(end -= 2, PAIRS + 2 * (rest % 100), 2);
    if (rest >= 10)
        memcpy(end -= 2, PAIRS + 2 * rest, 2);
    else
        *--end = (uint8_t)('0' + rest);
    return end;
}

/* Copy in steps of eight bytes. Up to seven bytes more than `size` are read and written. */
static inline uint8_t *put_bytes(uint8_t *out, const uint8_t *from, uint32_t size)
{
    uint8_t *end = out + size;
    do {
        memcpy(out, from, 8);
        out += 8;
        from += 8;
    } while (out < end);
    return end;
}

static inline uint8_t *put_number(uint8_t *out, uint64_t number)
{
    uint8_t text[40];
    if (number < 10) {
        *out = (uint8_t)('0' + number);
        return out + 1;
    }
    uint8_t *from = digits_before(text + 24, number);
    return put_bytes(out, from, (uint32_t)(text + 24 - from));
}

static inline uint8_t *put_size(uint8_t *out, uint32_t size)
{
    *out++ = '$';
    out = put_number(out, size);
    memcpy(out, "\r\n", 2);
    return out + 2;
}

static uint8_t *put_decimal(uint8_t *out, const Column *column, uint64_t code)
{
    uint8_t text[64], *end = text + 48;
    uint32_t is_minus_zero = column->minus && !code;
    int64_t value = is_minus_zero ? 0 : column->base + (int64_t)code - column->minus;
    uint64_t number = value < 0 ? (uint64_t)-value : (uint64_t)value;
    uint32_t decimals = (uint32_t)column->decimals;
    uint8_t *from = digits_before(end, number), *least = end - column->pad - decimals;
    while (from > least)
        *--from = '0';
    uint32_t digits = (uint32_t)(end - from), minus = is_minus_zero || value < 0;
    out = put_size(out, digits + (decimals > 0) + minus);
    if (minus)
        *out++ = '-';
    out = put_bytes(out, from, digits - decimals);
    if (decimals) {
        *out++ = '.';
        out = put_bytes(out, end - decimals, decimals);
    }
    return out;
}

static inline uint8_t *put_value(uint8_t *out, const Rows *rows, const Column *column, uint64_t code)
{
    if (column->kind != TEXTS)
        out = put_decimal(out, column, code);
    else {
        uint32_t size = column->sizes[code];
        out = put_size(out, size);
        out = put_bytes(out, column->bytes + rows->ends[column->first + code] - size, size);
    }
    memcpy(out, "\r\n", 2);
    return out + 2;
}

/* Write the start of an entry, up to the dot of its ID; nearly always the same as that of the previous entry. */
typedef struct {
    uint64_t ms;
    int size, digits;            /* digits of the sequence number; 0: nothing is here yet */
    uint8_t bytes[64];
} Head;

static int digits(uint64_t number)
{
    int count = 1;
    for (; number >= 10; number /= 10)
        count++;
    return count;
}

static void new_head(Head *head, const Rows *rows, const Id *id, int count)
{
    uint8_t text[40], *end = put_number(text, rows->ms + id->ms), *out = head->bytes;
    *out++ = '*';
    out = put_number(out, (uint64_t)rows->columns + 1);
    memcpy(out, "\r\n", 2);
    out = put_size(out + 2, (uint32_t)(end - text + 1 + count));
    out = put_bytes(out, text, (uint32_t)(end - text));
    *out++ = '.';
    head->size = (int)(out - head->bytes);
    head->ms = id->ms;
    head->digits = count;
}

/* Entries lo to hi - 1 as wire, at most `room` bytes, and rows->longest beyond; `ends` may be NULL. Bytes written, or
-1. */
static int64_t put_entries(const Rows *rows, uint32_t lo, uint32_t hi, uint8_t *start, uint64_t room, uint32_t *ends)
{
    uint8_t *out = start;
    Head head = {0, 0, 0, {0}};
    Id id = {0, 0};
    if (lo < hi)
        before(rows, lo, &id);
    for (uint32_t entry = lo; entry < hi; entry++) {
        uint64_t bit = entry * rows->row_bits + (uint64_t)(rows->ms_bits + rows->seq_bits);
        if (next_id(rows, entry, &id))
            return -1;
        int count = id.seq < 10 ? 1 : id.seq < 100 ? 2 : id.seq < 1000 ? 3 : digits(id.seq);
        if (head.ms != id.ms || head.digits != count)
            new_head(&head, rows, &id, count);
        out = put_bytes(out, head.bytes, (uint32_t)head.size);
        out = put_number(out, id.seq);
        memcpy(out, "\r\n", 2);
        out += 2;
        for (int i = 0; i < rows->columns; i++) {
            const Column *column = rows->column + i;
            uint64_t code = field(rows, bit, column->bits);
            if (column->kind == TEXTS && code >= column->texts)
                return bad("has a code that stands for nothing");
            out = put_value(out, rows, column, code);
            bit += (uint64_t)column->bits;
        }
        if ((uint64_t)(out - start) > room)
            return bad("has longer entries than it says");
        if (ends != NULL)
            ends[entry - lo] = (uint32_t)(out - start);
    }
    return out - start;
}

#endif
