"""Declarations: what an app consists of.

    processor           ``Processor``: a declared processor with its options, defaults and checks
    signature           what a user's function takes
    events              ``Event`` and ``Events``: the arguments of a processor's function
    policy              the failure policy: retries and the final action for a failed event
    middleware          the middleware protocol, and how layers are composed
    builtin_middleware  middleware that is included: timing, tracing, deduplicate
    feed_middleware     middleware and timeouts for processors that pull their events
    schedule            timers and crons, and the times at which they are due
    timeouts            one timeout for many calls
    user_errors         which exceptions of user code are failures of the event
    app_protocol        ``AppProtocol``: the attributes of an app that the other packages use
    errors              ``AppError``, ``EarlyReturnError``

Nothing in this package talks to a server.
"""
