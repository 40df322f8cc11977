"""The map of a cluster of several server groups, at each member (``cluster-enabled`` with a coordinator).

    assigning   TCLUSTER ASSIGN: empty slots leave this group
    cleaning    deletes the keys of slots that have left, or whose copy was aborted
    commands    TCLUSTER: the commands, and the status as one JSON document
    importing   slots with keys move to this group: the leader applies what the other leader sends
    inert       slots whose keys only another group may change
    keeper      follows the map at the coordinator, and writes the record of this group while this member leads
    leaving     notifies the clients of slots that have left this group
    linking     the other group of a move links the history objects of moving streams
    mapfile     the copy of the map in the data directory
    moving      TCLUSTER MOVE: slots with keys leave this group
    peer        the connection to the leader of the group to which slots move
    record      the record of this group: its members as clients reach them
    restoring   TCLUSTER RESTORE: the map is written to a coordinator that has lost it
    unserved    finds keys of this group in slots that it does not own
"""
