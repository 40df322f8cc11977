"""Operation of an app: what people and tests use to observe and control it.

    status       the state of an app, read from the server
    timerstatus  the timers and crons of an app, with their last and next times
    control      reset, pause, resume
    deletion     deletes the state of an app from a server
    metrics      ``/metrics`` for Prometheus
    testing      ``AppTest``: an app in this process, on its own server

Everything but metrics and testing works without a running worker.
"""
