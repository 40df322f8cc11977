"""``tidelog quickstart``: a server with sample data, and a console that shows it. In reading order:

    errors    the error of all modules
    folder    the directory with the data, and who may use it
    ports     a free port if the usual one is in use
    shop      the sample app: its topics, and a worker that fails for some orders
    history   the data of the previous day, appended once
    samples   the process that appends the data and runs the worker
    process   starts and stops the server, the console, and the samples

Rule 1: quickstart writes only to a new or empty directory, and to one that it has created.
Rule 2: no process outlives quickstart, even if it is killed.
"""
