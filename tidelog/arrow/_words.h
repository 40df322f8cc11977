/* Bytes as TRANGE sends them, cut anywhere, to entries, and an entry to words.

An entry is an array of bulk strings:

    *5\r\n  $17\r\n1700000000000.0\r\n  $1\r\nn\r\n  $2\r\n17\r\n  $1\r\ns\r\n  $1\r\nx\r\n
    words:  0 the ID                    1 a name      2 its value   3 a name      4 its value

Rule 1: RESP2 in the one form that servers send: an odd number of words, lengths in decimal without sign or leading
        zeros, CRLF after each word. Anything else is INVALID, and nothing after it is read.
Rule 2: no byte is parsed twice: `words` has the words found so far of an entry that is not complete yet.
Rule 3: memory follows what was received, never the lengths announced.
*/

#define FIRST_WORDS 64
#define KEPT_INPUT (1 << 22)  /* bytes; a larger buffer shrinks once the entry that it grew for is done */

typedef enum { MORE, DONE, INVALID, FAILED } Outcome;

typedef struct {
    Py_ssize_t at;     /* from the entry's first byte */
    Py_ssize_t value;  /* of a name, set by settle() in _rows.c: the word that is its value; 0: a repeated name */
    int32_t length;
    int32_t slot;      /* of a name: the wanted field that was at this word in the entry before; -1: none */
} Word;

typedef struct {
    char *bytes;             /* what was fed, from the first byte of some entry */
    Py_ssize_t have, room;   /* bytes in use, bytes allocated */
    Py_ssize_t entry;        /* where the current entry begins */
    Py_ssize_t at;           /* where its next word begins; once it is DONE, where it ends */
    Py_ssize_t left;         /* words still missing; 0 between two entries */
    Word *words;
    Py_ssize_t number;       /* words found so far */
    Py_ssize_t words_room;   /* words allocated; `slot` is set in all of them */
} Input;

/* The number in the "*3\r\n" or "$17\r\n" at `*at`; moves `*at` to the byte after it. */
static inline Outcome read_length(char kind, const char **at, const char *end, Py_ssize_t *length)
{
    const char *p = *at;
    if (p == end)
        return MORE;
    if (*p++ != kind)
        return INVALID;
    const char *first = p;
    int64_t number = 0;
    for (; p < end && *p >= '0' && *p <= '9' && p - first < 10; p++)
        number = number * 10 + (*p - '0');
    if (end - p < 2)
        return MORE;
    if (p == first || (*first == '0' && p - first > 1) || p[0] != '\r' || p[1] != '\n' || number > INT32_MAX)
        return INVALID;
    *at = p + 2;
    *length = (Py_ssize_t)number;
    return DONE;
}

static int input_more_words(Input *input)
{
    Py_ssize_t room = input->words_room ? 2 * input->words_room : FIRST_WORDS;
    Word *words = PyMem_Realloc(input->words, (size_t)room * sizeof *words);
    if (!words) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = input->words_room; i < room; i++)
        words[i].slot = -1;
    input->words = words;
    input->words_room = room;
    return 0;
}

/* Continue with the current entry, or begin the next one; DONE when it is complete. */
static Outcome input_next(Input *input)
{
    if (!input->bytes)
        return MORE;
    if (!input->left)
        input->entry = input->at;
    const char *p = input->bytes + input->at, *end = input->bytes + input->have;
    Outcome outcome = DONE;
    Py_ssize_t length = 0;
    if (!input->left) {
        if ((outcome = read_length('*', &p, end, &length)) != DONE)
            return outcome;
        if (length % 2 == 0)
            return INVALID;
        input->left = length;
        input->number = 0;
        input->at = p - input->bytes;
    }
    while (input->left) {
        if ((outcome = read_length('$', &p, end, &length)) != DONE)
            return outcome;
        if (end - p - 2 < length)
            return MORE;
        if (p[length] != '\r' || p[length + 1] != '\n')
            return INVALID;
        if (input->number == input->words_room && input_more_words(input))
            return FAILED;
        Word *word = &input->words[input->number++];
        word->at = p - input->bytes - input->entry;
        word->length = (int32_t)length;
        p += length + 2;
        input->at = p - input->bytes;
        input->left--;
    }
    return DONE;
}

/* Append bytes; those of entries that are DONE are removed. */
static int input_feed(Input *input, const char *bytes, Py_ssize_t number)
{
    Py_ssize_t gone = input->left ? input->entry : input->at;
    Py_ssize_t kept = input->have - gone;
    if (gone && kept)
        memmove(input->bytes, input->bytes + gone, (size_t)kept);
    input->have = kept;
    input->at -= gone;
    input->entry = 0;
    if (number > PY_SSIZE_T_MAX / 4 - kept) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t needed = kept + number;
    if (needed > input->room || (input->room > KEPT_INPUT && needed < input->room / 8)) {
        Py_ssize_t room = needed + needed / 2;
        char *larger = PyMem_Realloc(input->bytes, (size_t)room);
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        input->bytes = larger;
        input->room = room;
    }
    if (number)
        memcpy(input->bytes + kept, bytes, (size_t)number);
    input->have = needed;
    return 0;
}

static void input_drop(Input *input)
{
    PyMem_Free(input->bytes);
    PyMem_Free(input->words);
    *input = (Input){0};
}
