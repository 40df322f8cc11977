"""The registry of jobs, and what is known about them.

    registry    the registry, a stream of changes
    targets     finds the jobs of a module and describes a job for the registry
    resets      restarts a job with the registered code, from another position
    status      the status and the events that an engine reports about its jobs
    overview    collects the data of ``tidelog jobs status``
"""
