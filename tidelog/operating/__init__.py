"""What running programs need besides their data: texts for logs and errors, and signals.

    errortexts  texts of exceptions, even if their own code fails; repeated failures are logged once
    redaction   URLs without their secrets, for logs, errors and status
    signals     signal handlers that are installed for a time and not inherited by child processes

Rule 1: Nothing here sends a request to a server.
"""
