/* Executes GETs, SETs, INCRs and DECRs of different keys that arrived together. See stringgroups.py.

Each function executes the calls from `at` on, up to `stop` - 1, and ends before the first one that needs more than a
change of an existing string: a stream, an expiry that is due or must be removed, a number that is none. Its caller then
executes that call.

Rule 1: a call is executed completely or not at all. If memory is short, the calls before it are executed.
Rule 2: the attributes of a String are read and written at the offsets that learn() has found.
Rule 3: bytes are overwritten only if nothing but the String refers to them.

Decision: compiled Python takes four times as many instructions for a GET and for an INCR. It creates objects for the
number, its text, the record and the reply. Overwriting the bytes of a value saves a cache miss, that of their memory
pool, for each change.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define SET 5            /* see records.py: op u8, body u32, klen u32, expire u64, key, value; big-endian */
#define HEAD 17
#define DIGITS 20        /* characters of the lowest 64-bit number */
#define AT_ONCE 64       /* calls */
#define SHORT 1024       /* bytes of a value; longer ones are not copied, so Python executes the call */
#define SMALL_INT ((int64_t)1 << 62)

static PyTypeObject *type = NULL;                            /* String */
static Py_ssize_t value_at = 0, used_at = 0, dirty_at = 0;   /* offsets of its attributes */

typedef struct {
    PyObject *keys, *expires, *calls, *waiting, *watchers, *changed;  /* the last three: of writes */
    Py_ssize_t at, stop;
    int64_t now;
    const char *name;  /* the command's name as in the first call */
    Py_ssize_t name_size, words;
} Group;

#define VALUE(string) (*(PyObject **)((char *)(string) + value_at))
#define USED(string) (*(int64_t *)((char *)(string) + used_at))   /* twice the number, as mypyc stores it */
#define DIRTY(string) (*((char *)(string) + dirty_at))

/* The key of the call at index `at`, if it has the name and the number of words of the group; NULL if it does not. */
static PyObject *key_at(const Group *group, Py_ssize_t at)
{
    PyObject *argv = PyList_GET_ITEM(group->calls, at);
    if (!PyList_CheckExact(argv) || PyList_GET_SIZE(argv) != group->words)
        return NULL;
    for (Py_ssize_t i = 0; i < group->words; i++)
        if (!PyBytes_CheckExact(PyList_GET_ITEM(argv, i)))
            return NULL;
    PyObject *name = PyList_GET_ITEM(argv, 0);
    if (PyBytes_GET_SIZE(name) != group->name_size || memcmp(PyBytes_AS_STRING(name), group->name, group->name_size))
        return NULL;
    return PyList_GET_ITEM(argv, 1);
}

/* keys, expires, calls, at, stop, now; for writes, also waiting, watchers, changed */
static int group_of(Group *group, PyObject *const *args, Py_ssize_t words, int writes)
{
    if (type == NULL || !PyDict_CheckExact(args[0]) || !PyDict_CheckExact(args[1]) || !PyList_CheckExact(args[2]) ||
        (writes && (!PyDict_CheckExact(args[6]) || !PyDict_CheckExact(args[7]) || !PySet_Check(args[8])))) {
        PyErr_SetString(PyExc_TypeError, "dicts, a list and a set are needed, after learn()");
        return -1;
    }
    if (writes)
        group->waiting = args[6], group->watchers = args[7], group->changed = args[8];
    group->keys = args[0], group->expires = args[1], group->calls = args[2];
    group->at = PyLong_AsSsize_t(args[3]), group->stop = PyLong_AsSsize_t(args[4]);
    group->now = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred())
        return -1;
    if (group->stop > PyList_GET_SIZE(group->calls))
        group->stop = PyList_GET_SIZE(group->calls);
    if (group->at >= 0 && group->stop - group->at > AT_ONCE)
        group->stop = group->at + AT_ONCE;
    if (group->at < 0 || group->at >= group->stop || group->now < 0 || group->now >= SMALL_INT) {
        PyErr_SetString(PyExc_ValueError, "an index or a time that is out of range");
        return -1;
    }
    PyObject *first = PyList_GET_ITEM(group->calls, group->at);
    if (!PyList_CheckExact(first) || !PyList_GET_SIZE(first) || !PyBytes_CheckExact(PyList_GET_ITEM(first, 0))) {
        PyErr_SetString(PyExc_TypeError, "a list of bytes is needed");
        return -1;
    }
    group->name = PyBytes_AS_STRING(PyList_GET_ITEM(first, 0));
    group->name_size = PyBytes_GET_SIZE(PyList_GET_ITEM(first, 0));
    group->words = words;
    return 0;
}

/* The expiry of a key in ms since epoch; 0 for none, -1 if it is unknown. */
static int64_t expiry_of(const Group *group, PyObject *key)
{
    if (!PyDict_GET_SIZE(group->expires))
        return 0;
    PyObject *at = PyDict_GetItemWithError(group->expires, key);
    int64_t expiry = at == NULL ? 0 : PyLong_AsLongLong(at);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return -1;
    }
    return expiry;
}

static inline int is_string(PyObject *found)
{
    return found != NULL && Py_IS_TYPE(found, type) && VALUE(found) != NULL && PyBytes_CheckExact(VALUE(found)) &&
        !(USED(found) & 1);
}

/* Whether a client waits for changes of a key. */
static int observed(const Group *group, PyObject *key)
{
    if (!PyDict_GET_SIZE(group->waiting) && !PyDict_GET_SIZE(group->watchers))
        return 0;
    int found = PyDict_Contains(group->waiting, key) || PyDict_Contains(group->watchers, key);
    PyErr_Clear();
    return found;
}

static PyObject *looked_up(const Group *group, PyObject *key)
{
    PyObject *found = PyDict_GetItemWithError(group->keys, key);
    if (found == NULL)
        PyErr_Clear();
    return found;
}

static char *put(char *at, uint64_t number, int size)
{
    for (int i = size - 1; i >= 0; i--, number >>= 8)
        at[i] = (char)number;
    return at + size;
}

static char *put_record(char *at, PyObject *key, int64_t expiry, const char *value, Py_ssize_t size)
{
    Py_ssize_t length = PyBytes_GET_SIZE(key);
    *at++ = SET;
    at = put(at, (uint64_t)(HEAD - 5 + length + size), 4);
    at = put(at, (uint64_t)length, 4);
    at = put(at, (uint64_t)expiry, 8);
    memcpy(at, PyBytes_AS_STRING(key), (size_t)length);
    memcpy(at + length, value, (size_t)size);
    return at + length + size;
}

/* The text of a number; it ends at `end`. */
static char *put_number(char *end, int64_t number)
{
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        *--end = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *--end = '-';
    return end;
}

/* Whether bytes are a number as Redis accepts it: no sign but a minus, no leading zero. */
static int number_of(PyObject *bytes, int64_t *number)
{
    const char *text = PyBytes_AS_STRING(bytes);
    Py_ssize_t digits = PyBytes_GET_SIZE(bytes);
    int minus = digits > 1 && *text == '-';
    uint64_t sum = 0;
    text += minus, digits -= minus;
    if (digits < 1 || digits > DIGITS - 1 || (*text == '0' && (digits > 1 || minus)))
        return 0;
    for (; digits; digits--, text++) {
        if (*text < '0' || *text > '9')
            return 0;
        sum = 10 * sum + (uint64_t)(*text - '0');
    }
    if (sum > (uint64_t)INT64_MAX + (uint64_t)minus)
        return 0;
    *number = (int64_t)(minus ? 0 - sum : sum);
    return 1;
}

/* Makes the value of a string equal to some bytes, which may be an object already. Returns 0 if memory is short. */
static int replace(
    const Group *group, PyObject *string, PyObject *key, PyObject *object, const char *text, Py_ssize_t size)
{
    PyObject *old = VALUE(string);
    int in_place = Py_REFCNT(old) == 1 && PyBytes_GET_SIZE(old) == size && size > 1;
    PyObject *new = in_place ? NULL : object != NULL ? Py_NewRef(object) : PyBytes_FromStringAndSize(text, size);
    if ((!in_place && new == NULL) || (!DIRTY(string) && PySet_Add(group->changed, key) < 0)) {
        PyErr_Clear();
        Py_XDECREF(new);
        return 0;
    }
    DIRTY(string) = 1;
    if (in_place) {
        memcpy(PyBytes_AS_STRING(old), text, (size_t)size);
_Py_COMP_DIAG_PUSH
_Py_COMP_DIAG_IGNORE_DEPR_DECLS
        ((PyBytesObject *)old)->ob_shash = -1;
_Py_COMP_DIAG_POP
    } else {
        VALUE(string) = new;
        Py_DECREF(old);
    }
    return 1;
}

/* get(keys, expires, calls, at, stop, now, touch, null, longest, most): replies, joined, number of calls, number of
hits. `touch`: the time is recorded as that of the last use; `null`: the reply for a missing key; `longest`: bytes of a
value; `most`: the size of the replies after which no other call is executed. */
static PyObject *strings_get(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Group group;
    (void)self;
    if (count != 10 || !PyBytes_Check(args[7])) {
        PyErr_SetString(PyExc_TypeError, "ten arguments are needed");
        return NULL;
    }
    if (group_of(&group, args, 2, 0) < 0)
        return NULL;
    char digits[DIGITS];
    PyObject *strings[AT_ONCE];
    int touch = args[6] == Py_True;
    Py_ssize_t longest = PyLong_AsSsize_t(args[8]), most = PyLong_AsSsize_t(args[9]), size = 0, hits = 0, end = group.at;
    if (PyErr_Occurred())
        return NULL;
    for (; end < group.stop && size <= most; end++) {
        PyObject *key = key_at(&group, end), *found;
        int64_t expiry;
        if (key == NULL || (expiry = expiry_of(&group, key)) < 0 || (expiry && expiry <= group.now))
            break;
        found = strings[end - group.at] = looked_up(&group, key);
        if (found == NULL) {
            size += PyBytes_GET_SIZE(args[7]);
            continue;
        }
        if (!is_string(found) || PyBytes_GET_SIZE(VALUE(found)) > longest)
            break;
        Py_ssize_t length = PyBytes_GET_SIZE(VALUE(found));
        size += length + 5 + (digits + DIGITS - put_number(digits + DIGITS, length));
    }
    PyObject *replies = PyBytes_FromStringAndSize(NULL, size);
    if (replies == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(replies);
    for (Py_ssize_t i = 0; i < end - group.at; i++) {
        PyObject *found = strings[i];
        if (found == NULL) {
            memcpy(at, PyBytes_AS_STRING(args[7]), (size_t)PyBytes_GET_SIZE(args[7]));
            at += PyBytes_GET_SIZE(args[7]);
            continue;
        }
        PyObject *value = VALUE(found);
        size_t length = (size_t)PyBytes_GET_SIZE(value);
        char *number = put_number(digits + DIGITS, (int64_t)length);
        *at++ = '$';
        memcpy(at, number, (size_t)(digits + DIGITS - number));
        at += digits + DIGITS - number;
        memcpy(at, "\r\n", 2);
        memcpy(at + 2, PyBytes_AS_STRING(value), length);
        memcpy(at + 2 + length, "\r\n", 2);
        at += length + 4;
        if (touch)
            USED(found) = 2 * group.now;
        hits++;
    }
    return Py_BuildValue("Nnn", replies, end - group.at, hits);
}

/* set_(keys, expires, calls, at, stop, now, waiting, watchers, changed): records, joined, number of calls, bytes by which
values grew. `waiting`, `watchers`: keys whose changes clients wait for; `changed`: the set to which the keys are added. */
static PyObject *strings_set(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Group group;
    (void)self;
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "nine arguments are needed");
        return NULL;
    }
    if (group_of(&group, args, 3, 1) < 0)
        return NULL;
    PyObject *strings[AT_ONCE];
    Py_ssize_t size = 0, grown = 0, end = group.at;
    for (; end < group.stop; end++) {
        PyObject *key = key_at(&group, end);
        if (key == NULL || expiry_of(&group, key) || observed(&group, key) ||
            !is_string(strings[end - group.at] = looked_up(&group, key)))
            break;
        Py_ssize_t length = PyBytes_GET_SIZE(PyList_GET_ITEM(PyList_GET_ITEM(group.calls, end), 2));
        if (length > SHORT)
            break;
        size += HEAD + PyBytes_GET_SIZE(key) + length;
    }
    PyObject *records = PyBytes_FromStringAndSize(NULL, size);
    if (records == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(records);
    Py_ssize_t i = group.at;
    for (; i < end; i++) {
        PyObject *argv = PyList_GET_ITEM(group.calls, i), *key = PyList_GET_ITEM(argv, 1), *value = PyList_GET_ITEM(argv, 2);
        PyObject *string = strings[i - group.at];
        Py_ssize_t length = PyBytes_GET_SIZE(value), before = PyBytes_GET_SIZE(VALUE(string));
        if (!replace(&group, string, key, value, PyBytes_AS_STRING(value), length))
            break;
        at = put_record(at, key, 0, PyBytes_AS_STRING(value), length);
        USED(string) = 2 * group.now;
        grown += length - before;
    }
    if (at != PyBytes_AS_STRING(records) + size && _PyBytes_Resize(&records, at - PyBytes_AS_STRING(records)) < 0)
        return NULL;
    return Py_BuildValue("Nnn", records, i - group.at, grown);
}

/* add(keys, expires, calls, at, stop, now, waiting, watchers, changed, amount): records, joined, replies, joined, number of calls, bytes by
which values grew. */
static PyObject *strings_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Group group;
    (void)self;
    if (count != 10) {
        PyErr_SetString(PyExc_TypeError, "ten arguments are needed");
        return NULL;
    }
    if (group_of(&group, args, 2, 1) < 0)
        return NULL;
    int64_t amount = PyLong_AsLongLong(args[9]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t size = 0, grown = 0, end = group.at;
    for (PyObject *key; end < group.stop && (key = key_at(&group, end)) != NULL; end++)
        size += HEAD + PyBytes_GET_SIZE(key) + DIGITS;  /* at most */
    PyObject *records = PyBytes_FromStringAndSize(NULL, size);
    PyObject *replies = records == NULL ? NULL : PyBytes_FromStringAndSize(NULL, (end - group.at) * (DIGITS + 3));
    if (replies == NULL) {
        Py_XDECREF(records);
        return NULL;
    }
    char *at = PyBytes_AS_STRING(records), *reply = PyBytes_AS_STRING(replies), digits[DIGITS];
    Py_ssize_t i = group.at;
    for (; i < end; i++) {
        PyObject *key = PyList_GET_ITEM(PyList_GET_ITEM(group.calls, i), 1), *string = looked_up(&group, key);
        int64_t expiry = expiry_of(&group, key), number, sum;
        if (expiry < 0 || (expiry && expiry <= group.now) || observed(&group, key) || !is_string(string) ||
            !number_of(VALUE(string), &number) || __builtin_add_overflow(number, amount, &sum))
            break;
        char *text = put_number(digits + DIGITS, sum);
        Py_ssize_t length = digits + DIGITS - text, before = PyBytes_GET_SIZE(VALUE(string));
        if (!replace(&group, string, key, NULL, text, length))
            break;
        at = put_record(at, key, expiry, text, length);
        *reply++ = ':';
        memcpy(reply, text, (size_t)length);
        memcpy(reply + length, "\r\n", 2);
        reply += length + 2;
        USED(string) = 2 * group.now;
        grown += length - before;
    }
    if (_PyBytes_Resize(&records, at - PyBytes_AS_STRING(records)) < 0) {
        Py_DECREF(replies);
        return NULL;
    }
    if (_PyBytes_Resize(&replies, reply - PyBytes_AS_STRING(replies)) < 0) {
        Py_DECREF(records);
        return NULL;
    }
    return Py_BuildValue("NNnn", records, replies, i - group.at, grown);
}

/* learn(string, other, value, used) -> bool: whether the offsets of the attributes of a String were found. Both are
Strings with these attributes; `other` is dirty and `string` is not. Attributes have no offsets if the class is not
compiled. */
static PyObject *strings_learn(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 4 || Py_TYPE(args[0]) != Py_TYPE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "four arguments are needed");
        return NULL;
    }
    int64_t used = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t size = Py_TYPE(args[0])->tp_basicsize, values = 0, times = 0, flags = 0, found[3] = {0, 0, 0};
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(int64_t) <= size; at += sizeof(int64_t)) {
        if (*(PyObject **)((char *)args[0] + at) == args[2])
            values++, found[0] = at;
        if (*(int64_t *)((char *)args[0] + at) == 2 * used)
            times++, found[1] = at;
    }
    for (Py_ssize_t at = sizeof(PyObject); at < size; at++)
        if (((char *)args[0])[at] == 0 && ((char *)args[1])[at] == 1)
            flags++, found[2] = at;
    if (values != 1 || times != 1 || flags != 1)
        Py_RETURN_FALSE;
    value_at = found[0], used_at = found[1], dirty_at = found[2];
    Py_XSETREF(type, (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(args[0])));
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"add", (PyCFunction)(void (*)(void))strings_add, METH_FASTCALL, NULL},
    {"get", (PyCFunction)(void (*)(void))strings_get, METH_FASTCALL, NULL},
    {"learn", (PyCFunction)(void (*)(void))strings_learn, METH_FASTCALL, NULL},
    {"set_", (PyCFunction)(void (*)(void))strings_set, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_strings", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__strings(void)
{
    return PyModule_Create(&module);
}
