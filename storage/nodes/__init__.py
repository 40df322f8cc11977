"""Macro nodes: how some hundred entries lie together, in memory and in the store.

    cache   the decoded nodes that are kept, bounded by bytes
    draft   nodes that a stream was given and that nobody has written and compressed yet
    index   where each sealed node of a stream begins, by ordinal and by ID
    node    macro nodes: some hundred entries in wire form with arrays of offsets; sealed into a compressed blob,
            opened again
    packed  a node as it comes out of its blob, unpacked only as far as a read needs
    pool    what all streams share: where sealed nodes are kept, the cache, the limits of a node
"""
