"""What running programs need besides their data: texts for logs and errors, status displays, metrics and signals.

    errortexts     texts of exceptions, even if their own code fails; repeated failures are logged once
    redaction      URLs without their secrets, for logs, errors and status
    signals        signal handlers that are installed for a time and not inherited by child processes
    systemd        notifies systemd of the start and the state
    attached       runs a program until the process that started it ends
    tasks          waiting for events, and tasks in the background
    timelimit      time limits of calls that can't be cancelled
    terminal       output without control characters
    tables         tables, pairs, sizes and durations
    throughput     rates and dead letters of workers, jobs and flows
    watch          ``--watch``, ``--interval`` and ``--json`` of status commands
    hostnames      which requests come from this machine only
    loginfailures  the limit of failed logins of an address
    cors           access of pages of other origins
    listening      the options of programs that listen for HTTP: addresses, certificates
    serving        runs a program that serves HTTP until a signal arrives
    httpaddress    the HTTP connections of one address, with limits, for servers of aiohttp
    metricsserver  the HTTP server of ``/metrics``

Rule 1: Nothing here sends a request to a server.
"""
