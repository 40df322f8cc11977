/* Writing coded nodes: the form of each column, and the blob. See _coded.c for the rules. */

#ifndef TIDELOG_CODED_WRITE_H
#define TIDELOG_CODED_WRITE_H

#include "_codedread.h"

#define MOST_DIGITS 17    /* of a number that is coded */
#define DISTINCT 256      /* texts of a column */
#define DISTINCT_BYTES 4096
#define DISTINCT_SHARE 16 /* bytes of them an entry, at most */
#define SLOTS 1024        /* open addressing, above twice DISTINCT */
#define LONGEST_ENTRY 1024
#define LONG_ENTRY 120     /* of longer ones the first PROBED are looked at before the others: few are to be coded */
#define PROBED 48
#define WITHOUT_GIL 8192   /* bytes of wire from which on releasing the GIL takes much less time than encoding */

/* -- an entry's values --------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t at, size;
} Cell;

#define MINUS_ZERO ((uint64_t)1 << 63)  /* instead of a number */

typedef struct {
    Column column;
    uint32_t sizes[DISTINCT], places[DISTINCT]; /* of texts */
    uint64_t cost;                   /* bits */
} Plan;

/* Parse a size or a count in its canonical form. */
static int64_t read_size(const uint8_t *wire, uint32_t *at, uint32_t end, uint8_t mark)
{
    uint32_t here = *at;
    int64_t number = 0;
    if (here >= end || wire[here++] != mark)
        return -1;
    while (here < end && wire[here] >= '0' && wire[here] <= '9' && number < 100000)
        number = number * 10 + wire[here++] - '0';
    if (end - here < 2 || wire[here] != '\r' || wire[here + 1] != '\n')
        return -1;
    *at = here + 2;
    return number;
}

/* Find the values of all entries. Return their number, or 0 if these entries are not suitable. */
static int cut(const uint8_t *wire, uint32_t size, const uint8_t *ends, uint32_t count, Cell **cells)
{
    uint32_t at = 0, end;
    int64_t columns = 0;
    Cell *cell = NULL;
    for (uint32_t entry = 0; entry < count; entry++) {
        memcpy(&end, ends + 4 * (size_t)entry, 4);
        if (end < at || end > size)
            return 0;
        int64_t words = read_size(wire, &at, end, '*') - 1;
        if (!entry) {
            columns = words;
            if (columns < 1 || columns > MOST_COLUMNS)
                return 0;
            *cells = cell = PyMem_RawMalloc((size_t)count * (size_t)columns * sizeof(Cell));
            if (cell == NULL)
                return 0;
        }
        if (words != columns)
            return 0;
        for (int i = 0; i <= columns; i++) {
            int64_t bytes = read_size(wire, &at, end, '$');
            if (bytes < 0 || bytes > 255 || end - at < bytes + 2)
                return 0;
            if (i) {
                cell->at = at;
                cell->size = (uint32_t)bytes;
                cell++;
            }
            at += (uint32_t)bytes + 2;
        }
        if (at != end)
            return 0;
    }
    return (int)columns;
}

static int is_same(const uint8_t *wire, const Cell *a, const Cell *b)
{
    return a->size == b->size && !memcmp(wire + a->at, wire + b->at, a->size);
}

typedef struct {
    int64_t value;
    int decimals, whole, zero;   /* digits after and before the point; whether a needless zero leads */
    int minus_zero;
} Number;

static int is_number(const uint8_t *text, uint32_t size, Number *number)
{
    const uint8_t *end = text + size;
    int minus = size && *text == '-', point = 0, count = 0;
    int64_t value = 0;
    text += minus;
    number->zero = text < end && *text == '0';
    number->decimals = number->whole = 0;
    for (; text < end; text++) {
        if (*text == '.' && !point && number->whole) {
            point = 1;
            continue;
        }
        if (*text < '0' || *text > '9' || ++count > MOST_DIGITS)
            return 0;
        value = value * 10 + *text - '0';
        if (point)
            number->decimals++;
        else
            number->whole++;
    }
    number->zero = number->zero && number->whole > 1;
    number->value = minus ? -value : value;
    number->minus_zero = minus && !value;
    return number->whole && point == (number->decimals > 0);
}

/* Parse all values of a column as numbers of one form into `codes`. Return whether this succeeded. */
static int plan_numbers(
    const uint8_t *wire, const Cell *cells, uint32_t count, int columns, Plan *plan, uint64_t *codes
)
{
    int64_t least = 0, most = 0;
    int decimals = 0, pad = 0, shortest = 0, minus = 0;
    for (uint32_t entry = 0; entry < count; entry++, cells += columns) {
        Number number;
        if (!is_number(wire + cells->at, cells->size, &number))
            return 0;
        if (!entry) {
            least = most = number.value;
            decimals = number.decimals;
            shortest = number.whole;
        }
        if (number.decimals != decimals || (number.zero && pad && pad != number.whole))
            return 0;
        if (number.zero)
            pad = number.whole;
        minus |= number.minus_zero;
        codes[entry] = number.minus_zero ? MINUS_ZERO : (uint64_t)number.value;
        if (number.whole < shortest)
            shortest = number.whole;
        if (number.value < least)
            least = number.value;
        if (number.value > most)
            most = number.value;
    }
    if (pad > shortest)
        return 0;
    plan->column.kind = minus ? NUMBERS_AND_MINUS_ZERO : NUMBERS;
    plan->column.minus = minus;
    plan->column.decimals = decimals;
    plan->column.pad = pad ? pad : 1;
    plan->column.base = least;
    plan->column.bits = width((uint64_t)(most - least) + (uint64_t)minus);
    plan->cost = 12 * 8 + (uint64_t)plan->column.bits * count;
    for (uint32_t entry = 0; entry < count; entry++)
        codes[entry] = codes[entry] == MINUS_ZERO ? 0 : codes[entry] - (uint64_t)least + (uint64_t)minus;
    return plan->column.bits <= 48;
}

static uint32_t hashed(const uint8_t *text, uint32_t size)  /* FNV-1a */
{
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < size; i++)
        hash = (hash ^ text[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* Encode a column as repeated texts into `codes`, unless this takes `most` bits or more. Return whether it was encoded. */
static int plan_texts(
    const uint8_t *wire, const Cell *cells, uint32_t count, int columns, uint64_t most, Plan *plan, uint64_t *codes
)
{
    uint16_t slots[SLOTS];
    uint32_t distinct = 0, bytes = 0, room = DISTINCT_SHARE * count;
    if (room > DISTINCT_BYTES)
        room = DISTINCT_BYTES;
    memset(slots, 0, sizeof slots);
    for (uint32_t entry = 0; entry < count; entry++, cells += columns) {
        uint32_t slot = hashed(wire + cells->at, cells->size) & (SLOTS - 1);
        for (; slots[slot]; slot = (slot + 1) & (SLOTS - 1)) {
            Cell known = {plan->places[slots[slot] - 1], plan->sizes[slots[slot] - 1]};
            if (is_same(wire, cells, &known))
                break;
        }
        if (!slots[slot]) {
            bytes += cells->size;
            if (distinct == DISTINCT || bytes > room)
                return 0;
            plan->places[distinct] = cells->at;
            plan->sizes[distinct] = cells->size;
            slots[slot] = (uint16_t)++distinct;
            plan->cost = 8 * (8 + distinct + bytes) + (uint64_t)width(distinct - 1) * count;
            if (plan->cost >= most)
                return 0;
        }
        codes[entry] = slots[slot] - 1u;
    }
    plan->column.kind = TEXTS;
    plan->column.texts = distinct;
    plan->column.size = bytes;
    plan->column.bits = width(distinct - 1);
    return 1;
}

/* Choose the cheaper form, in a `plan` of zeros. `codes` has room for two columns; the second one is for the other form. */
static int plan_column(
    const uint8_t *wire, const Cell *cells, uint32_t count, int columns, Plan *plan, uint64_t *codes
)
{
    uint32_t same = 1;
    while (same < count && is_same(wire, cells, cells + (size_t)same * (size_t)columns))
        same++;
    if (same == count) {  /* one text, as names are: every code is 0, in no bits */
        plan->column.kind = TEXTS;
        plan->column.texts = 1;
        plan->column.size = plan->sizes[0] = cells->size;
        plan->places[0] = cells->at;
        memset(codes, 0, 8 * (size_t)count);
        return 1;
    }
    Plan texts;
    memset(&texts.column, 0, sizeof texts.column);
    int are = plan_numbers(wire, cells, count, columns, plan, codes);
    if (plan_texts(wire, cells, count, columns, are ? plan->cost : UINT64_MAX, &texts, codes + count)) {
        *plan = texts;
        memcpy(codes, codes + count, 8 * (size_t)count);
        return 1;
    }
    return are;
}

/* Return whether the first entries are suitable, which avoids examining most unsuitable nodes. */
static int is_promising(const uint8_t *wire, uint32_t size, const uint8_t *ends, uint64_t *codes)
{
    Cell *cells = NULL;
    int columns = cut(wire, size, ends, PROBED, &cells), fit = columns > 0;
    for (int i = 0; fit && i < columns; i++) {
        Plan plan = {0};
        fit = plan_column(wire, cells + i, PROBED, columns, &plan, codes);
    }
    PyMem_RawFree(cells);
    return fit;
}

static void put_field(uint8_t *rows, uint64_t bit, int bits, uint64_t code)
{
    if (!bits)
        return;
    uint8_t *at = rows + (bit >> 3);
    store(at, load8(at) | code << (bit & 7), 8);
}

typedef struct {
    const uint8_t *ms, *seq;     /* arrays of u64 */
    uint64_t first_ms, first_seq, seq_base;
    int counted, ms_bits, seq_bits;
} Ids;

static uint64_t number_at(const uint8_t *array, uint32_t entry)
{
    uint64_t number;
    memcpy(&number, array + 8 * (size_t)entry, 8);
    return number;
}

static int plan_ids(Ids *ids, uint32_t count)
{
    uint64_t last = 0, before = 0, lowest = UINT64_MAX, highest = 0;
    ids->first_ms = number_at(ids->ms, 0);
    ids->first_seq = number_at(ids->seq, 0);
    ids->counted = !(ids->first_seq >> 62);
    for (uint32_t entry = 0; entry < count; entry++) {
        uint64_t ms = number_at(ids->ms, entry), seq = number_at(ids->seq, entry);
        if (ms < last || ms >> 62)
            return 0;
        if (entry && seq != (ms == last ? before + 1 : 0))
            ids->counted = 0;
        if (seq < lowest)
            lowest = seq;
        if (seq > highest)
            highest = seq;
        last = ms;
        before = seq;
    }
    ids->ms_bits = width(last - ids->first_ms);
    ids->seq_bits = ids->counted ? 0 : width(highest - lowest);
    ids->seq_base = ids->counted ? 0 : lowest;
    return ids->ms_bits <= 48 && ids->seq_bits <= 48 && !(highest >> 62);
}

/* Write everything except the rows. */
static uint8_t *put_plan(uint8_t *out, const uint8_t *wire, const Ids *ids, const Plan *plan, int columns)
{
    out[0] = (uint8_t)ids->ms_bits;
    out[1] = (uint8_t)ids->seq_bits;
    out[2] = (uint8_t)columns;
    out[3] = 0;
    store(out + 4, ids->seq_base, 8);
    out += HEAD;
    for (; columns--; plan++) {
        *out++ = (uint8_t)plan->column.kind;
        *out++ = (uint8_t)plan->column.bits;
        if (plan->column.kind != TEXTS) {
            *out++ = (uint8_t)plan->column.decimals;
            *out++ = (uint8_t)plan->column.pad;
            store(out, (uint64_t)plan->column.base, 8);
            out += 8;
            continue;
        }
        store(out, plan->column.texts, 2);
        store(out + 2, plan->column.size, 4);
        out += 6;
        for (uint32_t i = 0; i < plan->column.texts; i++)
            *out++ = (uint8_t)plan->sizes[i];
        for (uint32_t i = 0; i < plan->column.texts; i++) {
            memcpy(out, wire + plan->places[i], plan->sizes[i]);
            out += plan->sizes[i];
        }
    }
    return out;
}

static void put_rows(
    uint8_t *out, const Ids *ids, const Plan *plan, int columns,
    const uint64_t *codes, uint32_t count, uint64_t row_bits
)
{
    uint64_t bit = 0;
    for (uint32_t entry = 0; entry < count; entry++, bit += row_bits) {
        uint64_t here = bit;
        put_field(out, here, ids->ms_bits, number_at(ids->ms, entry) - ids->first_ms);
        here += (uint64_t)ids->ms_bits;
        put_field(out, here, ids->seq_bits, number_at(ids->seq, entry) - ids->seq_base);
        here += (uint64_t)ids->seq_bits;
        for (int i = 0; i < columns; i++) {
            put_field(out, here, plan[i].column.bits, codes[(size_t)i * count + entry]);
            here += (uint64_t)plan[i].column.bits;
        }
    }
}

/* Return whether decoding the blob returns the same wire form (Rule 1) and ends, with an error that says why if it is
damaged; -1 if memory runs out. */
static int is_faithful(const uint8_t *blob, Py_ssize_t size, const Py_buffer *wire, const Py_buffer *ends)
{
    Rows rows;
    if (opened(&rows, blob, size) < 0)
        return 0;
    uint8_t *copy = PyMem_RawMalloc((size_t)wire->len + rows.longest);
    uint32_t *places = PyMem_RawMalloc((size_t)ends->len);
    int same = -1;
    if (copy != NULL && places != NULL) {
        int64_t made = put_entries(&rows, 0, rows.count, copy, (uint64_t)wire->len, places);
        same = made == wire->len && !memcmp(copy, wire->buf, (size_t)wire->len) &&
               !memcmp(places, ends->buf, (size_t)ends->len);
    }
    PyMem_RawFree(copy);
    PyMem_RawFree(places);
    return same;
}

/* Write a blob into new memory, `*blob` of `*size` bytes. Return as is_faithful() does. */
static int made(
    const Py_buffer *wire, const Py_buffer *ends, Ids *ids, const Plan *plan, int columns, const uint64_t *codes,
    uint32_t count, uint8_t **blob, uint64_t *size
)
{
    uint64_t row_bits = (uint64_t)(ids->ms_bits + ids->seq_bits);
    *size = BODY + HEAD + TAIL;
    for (int i = 0; i < columns; i++) {
        row_bits += (uint64_t)plan[i].column.bits;
        *size += plan[i].column.kind != TEXTS ? 12 : 8 + plan[i].column.texts + plan[i].column.size;
    }
    *size += (count * row_bits + 7) / 8;
    uint8_t *out = *blob = PyMem_RawCalloc(1, (size_t)*size);
    if (out == NULL)
        return -1;
    memcpy(out, "TN\2", 3);
    out[3] = ids->counted ? 0 : 1;
    store(out + 4, count, 4);
    store(out + 8, (uint64_t)wire->len, 4);
    store(out + 12, ids->first_ms, 8);
    store(out + 20, ids->first_seq, 8);
    uint8_t *rows = put_plan(out + BODY, wire->buf, ids, plan, columns);
    put_rows(rows, ids, plan, columns, codes, count, row_bits);
    return is_faithful(out, (Py_ssize_t)*size, wire, ends);
}

/* Return made(), and 0 if these entries are not to be coded. */
static int planned(
    const Py_buffer *wire, const Py_buffer *ends, Ids *ids, uint32_t count, uint8_t **blob, uint64_t *size
)
{
    uint64_t probe[2 * PROBED];
    if (wire->len / count > LONG_ENTRY && count > 2 * PROBED &&
        !is_promising(wire->buf, (uint32_t)wire->len, ends->buf, probe))
        return 0;
    Cell *cells = NULL;
    Plan *plan = NULL;
    uint64_t *codes = NULL;
    int columns = cut(wire->buf, (uint32_t)wire->len, ends->buf, count, &cells), fit = columns > 0, result = 0;
    if (fit && plan_ids(ids, count)) {
        plan = PyMem_RawCalloc((size_t)columns, sizeof(Plan));
        codes = PyMem_RawMalloc(((size_t)columns + 1) * count * sizeof(uint64_t));
        if (plan == NULL || codes == NULL)
            result = -1;
        else {
            uint32_t texts = 0;
            for (int i = 0; fit && i < columns; i++) {
                fit = plan_column(wire->buf, cells + i, count, columns, plan + i, codes + (size_t)i * count);
                texts += plan[i].column.kind == TEXTS ? plan[i].column.texts : 0;
            }
            if (fit && texts <= MOST_TEXTS)
                result = made(wire, ends, ids, plan, columns, codes, count, blob, size);
        }
    }
    PyMem_RawFree(cells);
    PyMem_RawFree(plan);
    PyMem_RawFree(codes);
    return result;
}

/* Full nodes are encoded without the GIL, in a thread (see `draft`), while the event loop runs. */
static PyObject *encoded(const Py_buffer *wire, const Py_buffer *ends, Ids *ids, uint32_t count)
{
    uint8_t *blob = NULL;
    uint64_t size = 0;
    PyThreadState *released = wire->len >= WITHOUT_GIL ? PyEval_SaveThread() : NULL;
    int result = planned(wire, ends, ids, count, &blob, &size);
    if (released != NULL)
        PyEval_RestoreThread(released);
    PyErr_Clear();
    PyObject *found = result > 0 ? PyBytes_FromStringAndSize((char *)blob, (Py_ssize_t)size) : NULL;
    PyMem_RawFree(blob);
    if (result < 0)
        return PyErr_NoMemory();
    if (result == 0)
        Py_RETURN_NONE;
    return found;
}

#endif
