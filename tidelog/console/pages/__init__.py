"""The pages of the console. Each module has the handlers of one page, and ``routes`` that the application adds.

    site         what the pages share: sessions, templates, the audit log
    login        login and logout
    nextsteps    what a user can try with the sample data of tidelog quickstart
    streamlist   finds streams
    stream       one stream: browse, follow, append
    search       searches a range of a stream for a text
    group        the groups of a stream: lag, pending messages, reset, ack, nack, claim
    topic        topics: settings, partitions, groups, records merged by time
    delayed      delayed entries of a stream or a topic: list, cancel
    retention    the retention of a stream or a topic: show, change with a preview
    groupset     groups by name over several streams: lag, pending messages, reset of all
    deadletters  dead letters: filter, read, replay
    deadletteredit  edit the event of a dead letter, preview the differences, and send it
    programs     all apps, jobs and flows, with their state
    workers      one app: its workers, processors and timers; pause, resume, reset
    jobs         one job: its epochs, partitions, state, snapshots and events; pause, resume, reset
    flows        one flow: its graph, connectors and groups; pause, resume, reset
    operations   operations that change a program
    overview     the server: its state, replicas or group, WAL, checkpoints, slow log, clients, and plots over time
"""
