"""Tiering: copies the sealed nodes of the store to an object store, as history objects (docs/history-format.md).

    helper       the process that does the copying; the server starts it and sends it requests
    adopting     protects the objects of another owner that the store needs
    deleting     deletes objects without remaining entries
    needed       determines which files are still needed, and finds orphans
    linking      links objects of another server group, for a move of slots to this one
    linkedparts  the parts of the manifests that list these objects
    rewriting    writes lost objects again, as long as the store has their entries
    freeing      finds nodes whose entries can leave the store, because objects have them
    following    the same on a replica, with the objects of its leader
    reader       another process, which reads entries back into the disk cache
    tieringpass  one pass over all streams: entries become objects, which manifests then list
    manifests    the manifests of the streams in the object store
    deletionlist  the files that wait for their deletion
    listed       what the manifests list, as this process knows it
    ownership    one server or server group owns a prefix of the object store
    source       reads streams and nodes from the store's file
    objects      assembles an object, and compares what the object store returns with the source
    objectstore  a directory or a bucket, with a hard time limit for each call

Only ``helper``, ``reader``, and their protocols are used by the server. Nothing here runs in the server's process.
"""
