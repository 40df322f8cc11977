"""Programs that run as child processes.

    subprocess  ``subprocess``: messages over the standard input and output of a program
    child       a child process: start, standard error, end
"""
