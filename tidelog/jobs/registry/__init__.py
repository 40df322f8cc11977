"""Which jobs there are, and what is known of them.

    registry    a stream of changes
    targets     the jobs of a module, and what the registry is told about one
    status      what an engine says about its jobs
    overview    what is known of jobs, for people
"""
