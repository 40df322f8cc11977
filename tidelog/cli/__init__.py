"""The ``tidelog`` CLI, also ``python -m tidelog.cli``.

    program   the commands load, tail, dump, info
    backups   tidelog backup, backups, verify, restore
    history   tidelog history: the history in an object store
    moving    tidelog import, export: copy streams and strings from Redis, and back or to files
    exporting  tidelog export --to: Parquet files of a stream or a topic
    fieldtypes  the option --type
    sql       tidelog sql: a query over streams and topics
    topics    tidelog topics: list and change topics
    dlq       tidelog dlq: dead letters
    sending   tidelog send, sendmany: send records to a topic
    worker    tidelog worker: run the processors of an app
    collector  the frequency of garbage collections in long-running commands
    logs      logging as text or JSON lines
    metrics   the options --metrics and --metrics-host
    app       tidelog app: status and control of an app
    status    the output of tidelog app status
    group     tidelog group: status and control of a server group
    cluster   tidelog cluster: run a cluster on this machine, and inspect it
    clustermap  tidelog cluster: the commands that change the map
    completion  tidelog completion: prints the completion script of a shell
    doctor    tidelog doctor: checks the installation, the machine, and a running server
    machinechecks  its checks of the machine
    serverchecks   its checks of running servers
    diagnosis  its findings and their output
    quickstart  tidelog quickstart: a server with sample data, and a console
    console   tidelog console: a web application
    gateway   tidelog gateway: streams over HTTP
    jobs      tidelog jobs: status and control of jobs
    engine    tidelog jobs engine: run jobs on Spark
    jobstatus  the output of tidelog jobs status
    flow      tidelog flow: check, run, and control flows
    flowhttp  HTTP requests to a process that runs flows
    flowoutput  the output of tidelog flow
    flowtests  the results of tidelog flow test
    extras    the message for a command whose extra packages are not installed
    lazygroup  command groups whose modules are imported on first use
    modules   the argument type module:name
    resetting  the options and the preview of the reset commands
    connect   the option --url, and messages for errors of a server
    load      appends the rows of a file to a stream
    lines     entries as JSON lines and as text
    report    the output of tidelog info
    progress  a progress bar
"""
