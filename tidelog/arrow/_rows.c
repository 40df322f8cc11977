/* Entries as TRANGE sends them to columns in Arrow's layout, without a Python object for an entry or a field.

    bytes, cut anywhere --_words.h--> the words of an entry --this file--> columns and times --_arrow.h--> a page

Rule 1: an entry is added when it is complete, and then to all columns.
Rule 2: columns hold what pages.py makes of the same bytes by hiredis. At INVALID input parse() stops and says so, and
        pages.py gives that input to hiredis, which finds the error.
Rule 3: a field that occurs twice has its last value, at its first place, as in a dict.
*/

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_arrow.h"
#include "_hash.h"
#include "_words.h"

#define MS_DIGITS 15  /* milliseconds with so many digits fit into 63 bits as microseconds */
#define FEW_WORDS 33  /* up to 16 fields: their names are compared pair by pair */

/* -- the object --------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int32_t length;
    Py_ssize_t word;
} Name;

typedef struct {
    PyObject_HEAD
    Input in;
    Name *sorted;              /* room for the names of one entry */
    Py_ssize_t sorted_room;

    PyObject *names;           /* tuple of bytes: the wanted fields */
    Column *columns;           /* one for each of them */
    Py_ssize_t wanted;
    int32_t *table;            /* open addressing: numbers of columns by their names' hashes; -1: free */
    uint32_t mask;             /* its size, a power of two above twice `wanted`, less one */
    int has_ids, has_times, has_fields, has_entries;
    Column ids, keys, items, entries;
    Buffer times, maps;        /* int64 microseconds; int32 offsets of maps */
    int plain_times;           /* `times` can hold the milliseconds of all IDs of the page */
    Py_ssize_t rows;           /* entries in the page */
    PyObject *last;            /* bytes: ID of the last entry that parse() added */
    int failed;                /* an entry is in some columns and not in others: the page is lost */
    Py_ssize_t shape;          /* names of the entry before, the last ones in `keys`; -1: one occurred twice */
} Rows;

static uint32_t hashed(const char *bytes, Py_ssize_t number)  /* FNV-1a */
{
    uint32_t hash = 2166136261u;
    for (Py_ssize_t i = 0; i < number; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
    return hash;
}

static inline int is_named(const Column *column, const char *name, Py_ssize_t length)
{
    return column->length == length && !memcmp(column->name, name, (size_t)length);
}

static int32_t slot_of(const Rows *self, const char *name, Py_ssize_t length)
{
    uint32_t place = hashed(name, length) & self->mask;
    for (; self->table[place] >= 0; place = (place + 1) & self->mask)
        if (is_named(&self->columns[self->table[place]], name, length))
            return self->table[place];
    return -1;
}

/* -- an entry into the columns ------------------------------------------------------------------------------------ */

static inline int same(const char *entry, const Word *a, const Word *b)
{
    return a->length == b->length && !memcmp(entry + a->at, entry + b->at, (size_t)a->length);
}

static int add_time(Rows *self, const char *id, Py_ssize_t length)
{
    int64_t ms = 0;
    Py_ssize_t i = 0;
    for (; i < length && id[i] >= '0' && id[i] <= '9' && i < MS_DIGITS; i++)
        ms = ms * 10 + (id[i] - '0');
    if (!i || (i < length && id[i] != '.'))
        self->plain_times = 0;
    while (++i < length)
        if (id[i] < '0' || id[i] > '9')
            self->plain_times = 0;
    ms *= 1000;
    return buffer_add(&self->times, &ms, sizeof ms);
}

static int add_wanted(Rows *self, const char *entry)
{
    Word *words = self->in.words;
    for (Py_ssize_t i = 1; i < self->in.number; i += 2) {
        const char *name = entry + words[i].at;
        int32_t slot = words[i].slot;
        if (slot < 0 || !is_named(&self->columns[slot], name, words[i].length))
            slot = words[i].slot = slot_of(self, name, words[i].length);
        if (slot >= 0)
            self->columns[slot].found = i + 1;  /* the last one of several counts */
    }
    for (Py_ssize_t i = 0; i < self->wanted; i++) {
        Column *column = &self->columns[i];
        const Word *value = &words[column->found];
        if (column_add(column, entry + value->at, column->found ? value->length : 0) ||
            column_mark(column, self->rows, column->found != 0))
            return -1;
        column->found = 0;
    }
    return 0;
}

/* Whether the names are those of the entry before, and all different. */
static int is_like_before(const Rows *self, const char *entry)
{
    Py_ssize_t fields = self->in.number / 2;
    if (!fields || !self->rows || self->shape != fields)
        return 0;
    const int32_t *ends = (const int32_t *)(const void *)self->keys.offsets.at + self->keys.rows - fields;
    for (Py_ssize_t i = 0; i < fields; i++) {
        const Word *name = &self->in.words[2 * i + 1];
        if (ends[i + 1] - ends[i] != name->length ||
            memcmp(self->keys.data.at + ends[i], entry + name->at, (size_t)name->length))
            return 0;
    }
    return 1;
}

static int by_name(const void *left, const void *right)
{
    const Name *a = left, *b = right;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    int order = memcmp(a->name, b->name, (size_t)a->length);
    return order ? order : (a->word > b->word) - (a->word < b->word);
}

static int all_differ(const Rows *self, const char *entry)
{
    for (Py_ssize_t i = 3; i < self->in.number; i += 2)
        for (Py_ssize_t j = 1; j < i; j += 2)
            if (same(entry, &self->in.words[i], &self->in.words[j]))
                return 0;
    return 1;
}

/* Set `value` of all names: Rule 3. */
static int settle(Rows *self, const char *entry)
{
    Py_ssize_t fields = self->in.number / 2;
    if (self->sorted_room < fields) {
        Name *sorted = PyMem_Realloc(self->sorted, (size_t)self->in.words_room * sizeof *sorted);
        if (!sorted) {
            PyErr_NoMemory();
            return -1;
        }
        self->sorted = sorted;
        self->sorted_room = self->in.words_room;
    }
    Name *names = self->sorted;
    for (Py_ssize_t i = 0; i < fields; i++) {
        const Word *name = &self->in.words[2 * i + 1];
        names[i] = (Name){entry + name->at, name->length, 2 * i + 1};
    }
    qsort(names, (size_t)fields, sizeof *names, by_name);
    for (Py_ssize_t i = 0, j; i < fields; i = j) {
        Word *first = &self->in.words[names[i].word];
        for (j = i + 1; j < fields && same(entry, first, &self->in.words[names[j].word]); j++)
            self->in.words[names[j].word].value = 0;
        first->value = names[j - 1].word + 1;
    }
    return 0;
}

static int add_fields(Rows *self, const char *entry)
{
    int32_t end = 0;
    if (!self->rows && buffer_add(&self->maps, &end, sizeof end))
        return -1;
    Py_ssize_t fields = self->in.number / 2;
    int known = is_like_before(self, entry) || (self->in.number <= FEW_WORDS && all_differ(self, entry));
    if (!known && settle(self, entry))
        return -1;
    self->shape = fields;
    for (Py_ssize_t i = 1; i < self->in.number; i += 2) {
        const Word *name = &self->in.words[i];
        Py_ssize_t at = known ? i + 1 : name->value;
        if (!at) {
            self->shape = -1;
            continue;
        }
        const Word *value = &self->in.words[at];
        if (column_add(&self->keys, entry + name->at, name->length) ||
            column_add(&self->items, entry + value->at, value->length))
            return -1;
    }
    end = (int32_t)self->keys.rows;
    return buffer_add(&self->maps, &end, sizeof end);
}

static int add_entry(Rows *self)
{
    const char *entry = self->in.bytes + self->in.entry;
    const Word *id = &self->in.words[0];
    if ((self->has_ids && column_add(&self->ids, entry + id->at, id->length)) ||
        (self->has_times && add_time(self, entry + id->at, id->length)) ||
        (self->wanted && add_wanted(self, entry)) ||
        (self->has_fields && add_fields(self, entry)) ||
        (self->has_entries && column_add(&self->entries, entry, self->in.at - self->in.entry)))
        return -1;
    self->rows++;
    return 0;
}

/* -- methods ------------------------------------------------------------------------------------------------------ */

static PyObject *rows_feed(PyObject *object, PyObject *data)
{
    Rows *self = (Rows *)object;
    Py_buffer given;
    if (PyObject_GetBuffer(data, &given, PyBUF_SIMPLE))
        return NULL;
    int failed = input_feed(&self->in, given.buf, given.len);
    PyBuffer_Release(&given);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *rows_parse(PyObject *object, PyObject *most)
{
    Rows *self = (Rows *)object;
    Outcome outcome = MORE;
    Py_ssize_t limit = PyLong_AsSsize_t(most);
    if (limit < 0 && PyErr_Occurred())
        return NULL;
    if (self->failed) {
        PyErr_SetString(PyExc_RuntimeError, "an entry is in some columns and not in others");
        return NULL;
    }
    Py_ssize_t last = -1, length = 0;  /* where the last ID is, until the next feed() */
    while (self->rows < limit) {
        outcome = input_next(&self->in);
        if (outcome == FAILED || (outcome == DONE && add_entry(self))) {
            self->failed = 1;
            return NULL;
        }
        if (outcome != DONE)
            break;
        last = self->in.entry + self->in.words[0].at;
        length = self->in.words[0].length;
    }
    if (last >= 0) {
        Py_XDECREF(self->last);
        self->last = PyBytes_FromStringAndSize(self->in.bytes + last, length);
        if (!self->last)
            return NULL;
    }
    return PyLong_FromSsize_t(outcome == INVALID ? ~self->rows : self->rows);
}

static PyObject *rows_rest(PyObject *object, PyObject *Py_UNUSED(none))
{
    Rows *self = (Rows *)object;
    const Input *in = &self->in;
    Py_ssize_t from = in->left ? in->entry : in->at;
    return PyBytes_FromStringAndSize(in->bytes ? in->bytes + from : "", in->have - from);
}

static PyObject *or_none(int wanted, Column *column)
{
    return wanted ? column_take(column) : Py_NewRef(Py_None);
}

static PyObject *rows_page(PyObject *object, PyObject *Py_UNUSED(none))
{
    Rows *self = (Rows *)object;
    if (!self->rows || !self->last || self->failed) {
        PyErr_SetString(PyExc_RuntimeError, "there is no page");
        return NULL;
    }
    PyObject *ids = or_none(self->has_ids, &self->ids);
    PyObject *times = buffer_take(&self->times);
    PyObject *fields = PyTuple_New(self->wanted);
    for (Py_ssize_t i = 0; fields && i < self->wanted; i++) {
        PyObject *column = column_take(&self->columns[i]);
        if (!column || PyTuple_SetItem(fields, i, column))
            Py_CLEAR(fields);
    }
    PyObject *maps = buffer_take(&self->maps);
    PyObject *keys = or_none(self->has_fields, &self->keys), *items = or_none(self->has_fields, &self->items);
    PyObject *entries = or_none(self->has_entries, &self->entries);
    PyObject *page = NULL;
    if (ids && times && fields && maps && keys && items && entries)
        page = Py_BuildValue("(nOOOOOOOO)", self->rows, self->last, ids,
                             self->has_times && self->plain_times ? times : Py_None, fields, maps, keys, items,
                             entries);
    self->failed = !page;
    self->rows = 0;
    self->plain_times = 1;
    Py_XDECREF(ids);
    Py_XDECREF(times);
    Py_XDECREF(fields);
    Py_XDECREF(maps);
    Py_XDECREF(keys);
    Py_XDECREF(items);
    Py_XDECREF(entries);
    return page;
}

/* -- the type ----------------------------------------------------------------------------------------------------- */

static int rows_want(Rows *self)
{
    uint32_t size = 8;
    self->wanted = PyTuple_Size(self->names);
    while (size < 2 * (size_t)self->wanted + 1)
        size *= 2;
    self->mask = size - 1;
    self->columns = PyMem_Calloc((size_t)self->wanted + 1, sizeof *self->columns);
    self->table = PyMem_Malloc(size * sizeof *self->table);
    if (!self->columns || !self->table) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < size; i++)
        self->table[i] = -1;
    for (Py_ssize_t i = 0; i < self->wanted; i++) {
        char *name;
        Column *column = &self->columns[i];
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(self->names, i), &name, &column->length))
            return -1;
        column->name = name;
        uint32_t place = hashed(name, column->length) & self->mask;
        while (self->table[place] >= 0)
            place = (place + 1) & self->mask;
        self->table[place] = (int32_t)i;
    }
    return 0;
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"names", "ids", "times", "fields", "entries", NULL};
    PyObject *names;
    int ids, times, fields, entries;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!pppp", words, &PyTuple_Type, &names, &ids, &times, &fields,
                                     &entries))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Rows *self = (Rows *)allocate(type, 0);  /* zeroed */
    if (!self)
        return NULL;
    self->names = Py_NewRef(names);
    self->has_ids = ids;
    self->has_times = times;
    self->has_fields = fields;
    self->has_entries = entries;
    self->plain_times = 1;
    if (rows_want(self)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void rows_dealloc(PyObject *object)
{
    Rows *self = (Rows *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (Py_ssize_t i = 0; self->columns && i < self->wanted; i++)
        column_drop(&self->columns[i]);
    column_drop(&self->ids);
    column_drop(&self->keys);
    column_drop(&self->items);
    column_drop(&self->entries);
    buffer_drop(&self->times);
    buffer_drop(&self->maps);
    input_drop(&self->in);
    PyMem_Free(self->sorted);
    PyMem_Free(self->columns);
    PyMem_Free(self->table);
    Py_XDECREF(self->names);
    Py_XDECREF(self->last);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"feed", rows_feed, METH_O, "Take bytes."},
    {"parse", rows_parse, METH_O, "Add entries up to a limit; returns how many there are, ~that if no entry follows."},
    {"rest", rows_rest, METH_NOARGS, "The bytes that were fed and are in no page, from the first byte of an entry."},
    {"page", rows_page, METH_NOARGS, "Return the page's buffers and begin the next page."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Rows(names, ids, times, fields, entries): entries in RESP to Arrow's buffers. See _rows.pyi."},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"tidelog.arrow._rows.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, slots};

static PyMethodDef functions[] = {
    {"partitions", partitions, METH_VARARGS, "The partition of each key of a binary column. See _rows.pyi."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    make_crc_table();
    PyObject *type = PyType_FromSpec(&spec);
    int failed = !type || PyModule_AddObjectRef(module, "Rows", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_rows", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void)
{
    return PyModuleDef_Init(&module);
}
