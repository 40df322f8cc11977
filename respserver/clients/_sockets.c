/* One turn of reading sockets, a write, and waiting for the next turn (see sockets.py).

Rule 1: sockets don't block, or are used as if they didn't (MSG_DONTWAIT), so the GIL is kept.
Rule 2: a client may be taken out of the list, and its socket closed, by whatever is called here. So it is looked up
        again after each call, and owned while it is used.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define EVENTS 1024       /* of one turn */
#define CHUNK (250 << 10) /* bytes: a shorter one is all that has arrived */
#define CHUNKS 32         /* of one client in one turn */
#define TURN_NS 20000000  /* after which the turn ends; the others are read first in the next one */

static char buffer[CHUNK]; /* what it holds is copied before anything is called */
static int left_at; /* of the events of the last turn the first one that was left, 0 for none; only a hint */
static PyObject *received, *ended, *failed; /* names of methods */
static struct { /* what wait_for_events() has found, for receive() */
    struct epoll_event *events;
    int found, epoll;
} given;

/* What the callee has raised. A bug is the client's end; what is no Exception ends the turn. */
static int raised(PyObject *client)
{
    PyObject *type, *value, *trace, *done;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    done = PyObject_CallMethodOneArg(client, failed, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int call(PyObject *client, PyObject *name, PyObject *what)
{
    PyObject *done;
    if (what == NULL)
        return raised(client);
    done = PyObject_CallMethodOneArg(client, name, what);
    Py_DECREF(what);
    if (done == NULL)
        return raised(client);
    Py_DECREF(done);
    return 0;
}

static int is_at(PyObject *clients, int fd, PyObject *client)
{
    return fd < PyList_GET_SIZE(clients) && PyList_GET_ITEM(clients, fd) == client;
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Hand over what has arrived on a client's socket. -1: the turn ends. */
static int take(PyObject *clients, int fd, PyObject *client, long long until)
{
    for (int chunks = 0; chunks < CHUNKS && is_at(clients, fd, client);) {
        ssize_t got = recv(fd, buffer, CHUNK, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (got <= 0)
            return call(client, ended, PyLong_FromLong(got ? errno : 0));
        if (call(client, received, PyBytes_FromStringAndSize(buffer, got)) < 0)
            return -1;
        if (got < CHUNK || now_ns() > until)
            return 0;
        chunks++;
    }
    return 0;
}

static int take_at(PyObject *clients, int fd, long long until)
{
    PyObject *client = fd >= 0 && fd < PyList_GET_SIZE(clients) ? PyList_GET_ITEM(clients, fd) : Py_None;
    int done;
    if (client == Py_None)
        return 0;
    Py_INCREF(client);
    done = take(clients, fd, client, until);
    Py_DECREF(client);
    return done;
}

/* receive(epoll, clients): clients[fd] is who has the socket fd, or None. Hands over what has arrived on the sockets in
   the set, in its order, but ends after some time. Returns whether there may be more. */
static PyObject *sockets_receive(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct epoll_event room[EVENTS], *events = room;
    long long until;
    int found, first, epoll;
    (void)self;
    if (count != 2 || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a descriptor and a list are needed");
        return NULL;
    }
    epoll = (int)PyLong_AsLong(args[0]);
    if (epoll == -1 && PyErr_Occurred())
        return NULL;
    if (given.found && given.epoll == epoll) {
        events = given.events;
        found = given.found;
        given.found = 0;
    } else
        found = epoll_wait(epoll, events, EVENTS, 0);
    if (found < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    until = found > 0 ? now_ns() + TURN_NS : 0;
    first = found > 0 ? left_at % found : 0; /* what was left is reported again, in the same order */
    left_at = 0;
    for (int done = 0; done < found; done++) {
        int at = (first + done) % found;
        if (done && now_ns() > until) {
            left_at = at;
            break;
        }
        if (take_at(args[1], events[at].data.fd, until) < 0)
            return NULL;
    }
    return PyBool_FromLong(found == EVENTS || (found > 0 && now_ns() > until));
}

/* send(fd, data) -> int: how many bytes the socket has taken; -1 if none, whatever the reason. */
static PyObject *sockets_send(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ssize_t sent;
    int fd;
    (void)self;
    if (count != 2 || !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a descriptor and bytes are needed");
        return NULL;
    }
    fd = (int)PyLong_AsLong(args[0]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    do
        sent = send(fd, PyBytes_AS_STRING(args[1]), (size_t)PyBytes_GET_SIZE(args[1]), MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return PyLong_FromSsize_t(sent);
}

/* -- waiting in place of libuv --------------------------------------------------------------------------------- */

/* libuv has functions for embedding its loop in another one. With them, this module waits for the set of the sockets,
   to which the descriptor of libuv's own set is added. A prepare handle, which libuv calls before each poll, returns
   when the loop has something to do. The poll itself never waits, because an idle handle is active. */

enum { IDLE = 6, PREPARE = 9 }; /* of uv_handle_type */

typedef struct { /* the part of uv_handle_t that can be used */
    void *data;
} Handle;

static struct {
    int (*backend_fd)(const void *loop), (*backend_timeout)(const void *loop);
    int (*prepare_init)(void *loop, Handle *), (*prepare_start)(Handle *, void (*)(Handle *));
    int (*idle_init)(void *loop, Handle *), (*idle_start)(Handle *, void (*)(Handle *)), (*idle_stop)(Handle *);
    size_t (*handle_size)(int type);
    void (*update_time)(void *loop), (*unref)(Handle *), (*close)(Handle *, void (*)(Handle *));
} uv;

static const struct {
    const char *name;
    void *function;
} functions_of_uv[] = {
    {"uv_backend_fd", &uv.backend_fd}, {"uv_backend_timeout", &uv.backend_timeout},
    {"uv_prepare_init", &uv.prepare_init}, {"uv_prepare_start", &uv.prepare_start}, {"uv_idle_init", &uv.idle_init},
    {"uv_idle_start", &uv.idle_start}, {"uv_idle_stop", &uv.idle_stop}, {"uv_handle_size", &uv.handle_size},
    {"uv_update_time", &uv.update_time}, {"uv_unref", &uv.unref}, {"uv_close", &uv.close},
};

typedef struct {
    void *loop;
    int epoll, backend;
    PyObject *turn; /* NULL: closed */
    Handle *prepare, *idle;
    struct epoll_event events[EVENTS];
} Waiting;

/* Our handles have no ``data``, from which uvloop would recognize its own. */
static Waiting **waiting_of(Handle *prepare)
{
    return (Waiting **)((char *)prepare + uv.handle_size(PREPARE));
}

static void nothing(Handle *handle)
{
    (void)handle;
}

/* Call turn() with the events that were found. */
static void take_turn(Waiting *waiting, int found)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *turn = Py_NewRef(waiting->turn), *done;
    given.events = waiting->events;
    given.found = found;
    given.epoll = waiting->epoll;
    done = PyObject_CallNoArgs(turn);
    given.found = 0;
    if (done == NULL)
        PyErr_WriteUnraisable(turn);
    Py_XDECREF(done);
    Py_DECREF(turn);
    PyGILState_Release(state);
}

/* libuv calls this before it polls, without the GIL. */
static void wait_for_events(Handle *prepare)
{
    Waiting *waiting = *waiting_of(prepare);
    struct epoll_event *events = waiting->events;
    int again = 1;
    while (again && waiting->turn != NULL) {
        int timeout, found;
        uv.idle_stop(waiting->idle); /* with it, the timeout would be 0 */
        uv.update_time(waiting->loop);
        timeout = uv.backend_timeout(waiting->loop);
        uv.idle_start(waiting->idle, nothing);
        found = epoll_wait(waiting->epoll, events, EVENTS, timeout);
        again = timeout && found > 0;
        for (int at = 0; at < found; at++)
            if (events[at].data.fd == waiting->backend) {
                found--;
                memmove(&events[at], &events[at + 1], sizeof *events * (size_t)(found - at)); /* the order stays */
                again = 0;
            }
        if (found > 0)
            take_turn(waiting, found);
    }
}

static void free_handle(Handle *handle)
{
    free(handle);
}

static void free_waiting(Handle *prepare)
{
    free(*waiting_of(prepare));
    free(prepare);
}

/* Find the functions in this library, which is loaded. Returns whether it has them. */
static int find_functions(const char *library)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return 0;
    for (size_t at = 0; at < sizeof functions_of_uv / sizeof *functions_of_uv; at++) {
        void *function = dlsym(handle, functions_of_uv[at].name);
        if (function == NULL)
            return 0;
        memcpy(functions_of_uv[at].function, &function, sizeof function);
    }
    return 1;
}

/* wait(library, loop, epoll, turn): let a loop of uvloop wait here. When sockets are readable, turn() is called, which
   calls receive() and raises nothing. ``loop`` is a capsule with libuv's loop, and ``library`` has the functions of
   libuv. Returns an object for unwait(), or None if this is not possible. */
static PyObject *sockets_wait(PyObject *self, PyObject *args)
{
    PyObject *capsule, *turn;
    const char *library;
    int epoll;
    struct epoll_event event = {.events = EPOLLIN};
    Waiting *waiting;
    Handle *idle, *prepare;
    void *loop;
    (void)self;
    if (!PyArg_ParseTuple(args, "sOiO", &library, &capsule, &epoll, &turn))
        return NULL;
    loop = PyCapsule_GetPointer(capsule, NULL);
    if (loop == NULL)
        return NULL;
    if (!find_functions(library))
        Py_RETURN_NONE;
    waiting = calloc(1, sizeof *waiting);
    idle = calloc(1, uv.handle_size(IDLE));
    prepare = calloc(1, uv.handle_size(PREPARE) + sizeof waiting);
    if (waiting == NULL || idle == NULL || prepare == NULL) {
        free(waiting);
        free(idle);
        free(prepare);
        return PyErr_NoMemory();
    }
    waiting->loop = loop;
    waiting->epoll = epoll;
    waiting->backend = event.data.fd = uv.backend_fd(loop);
    waiting->prepare = prepare;
    waiting->idle = idle;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, waiting->backend, &event) < 0) {
        free(waiting);
        free(idle);
        free(prepare);
        Py_RETURN_NONE;
    }
    waiting->turn = Py_NewRef(turn);
    *waiting_of(prepare) = waiting;
    uv.idle_init(loop, idle);
    uv.idle_start(idle, nothing);
    uv.prepare_init(loop, prepare);
    uv.prepare_start(prepare, wait_for_events);
    uv.unref(idle); /* they don't keep the loop running */
    uv.unref(prepare);
    return PyCapsule_New(waiting, NULL, NULL);
}

/* unwait(waiting): let the loop wait by itself. Its current iteration frees the rest. */
static PyObject *sockets_unwait(PyObject *self, PyObject *capsule)
{
    Waiting *waiting = PyCapsule_GetPointer(capsule, NULL);
    (void)self;
    if (waiting == NULL)
        return NULL;
    Py_CLEAR(waiting->turn);
    uv.close(waiting->idle, free_handle);
    uv.close(waiting->prepare, free_waiting);
    Py_RETURN_NONE;
}

/* -- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"receive", (PyCFunction)(void (*)(void))sockets_receive, METH_FASTCALL, NULL},
    {"send", (PyCFunction)(void (*)(void))sockets_send, METH_FASTCALL, NULL},
    {"unwait", sockets_unwait, METH_O, NULL},
    {"wait", sockets_wait, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sockets", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sockets(void)
{
    received = PyUnicode_InternFromString("received");
    ended = PyUnicode_InternFromString("ended");
    failed = PyUnicode_InternFromString("failed");
    if (received == NULL || ended == NULL || failed == NULL)
        return NULL;
    return PyModule_Create(&module);
}
