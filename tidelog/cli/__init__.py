"""The ``tidelog`` program, also ``python -m tidelog.cli``.

    program   the commands load, tail, dump, info
    backups   those of backups: backup, backups, verify, restore
    moving    tidelog import, export: streams and strings from a Redis, and back
    topics    tidelog topics: what topics there are, and what changes them
    dlq       tidelog dlq: dead letters, the events that processors gave up
    sending   tidelog send, sendmany: records into a topic
    worker    tidelog worker: run the processors of an app
    collector  how often programs that run look for circles
    logs      its logging, as text or as JSON lines
    app       tidelog app: what an app is doing, and what people do to it
    status    what ``tidelog app status`` prints
    jobs      tidelog jobs: which jobs there are, and what people do to them
    engine    tidelog jobs engine: run jobs on this machine's Spark
    jobstatus  what ``tidelog jobs status`` prints
    flow      tidelog flow: checks and runs flow files; inspects and controls running flows
    flowhttp  a client of the HTTP API of a flow process
    flowoutput  prints the state of flows
    later     commands whose module is imported when they are asked for
    modules   module:name, in arguments
    connect   the option --url, and a server's errors
    load      rows of a file into a stream
    lines     entries as JSON lines and as text
    report    what ``tidelog info`` prints
    progress  a progress bar
    output    text for the terminal, without control characters
"""
