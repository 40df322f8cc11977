/* One turn of reading sockets, and a write (see sockets.py).

Rule 1: sockets don't block, or are used as if they didn't (MSG_DONTWAIT), so the GIL is kept.
Rule 2: a client may be taken out of the list, and its socket closed, by whatever is called here. So it is looked up
        again after each call, and owned while it is used.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
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
    struct epoll_event events[EVENTS];
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

/* -- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"receive", (PyCFunction)(void (*)(void))sockets_receive, METH_FASTCALL, NULL},
    {"send", (PyCFunction)(void (*)(void))sockets_send, METH_FASTCALL, NULL},
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
