"""Macro nodes: how some hundred entries are kept together, in memory and in the store.

    node     a node in memory: entries in wire form with arrays of offsets; sealed into a compressed blob
    loose    entries at a stream's end that nobody has read yet, in fewer objects than a node
    packed   a node as it comes out of its blob, unpacked only as far as a read needs
    coded    a node whose columns are coded as rows of bits, read without unpacking it
    coder    what reads and writes these rows: _coded.c, or codedrows.py where that was not compiled
    _coded   rows of bits, written, searched and read
    codedrows  the same in Python, but for writing
    index    where each sealed node of a stream begins, by ordinal and by ID
    cache    the opened nodes that are kept, bounded by bytes
    pool     what all streams share: where sealed nodes are kept, the cache, the limits of a node
    bare     entries without IDs, as they are staged
    dashed   entries in the form that X commands send
    draft    nodes that a stream was given, but which are not written and compressed yet
    thinned  nodes without the bytes of their dead entries
"""
