"""Objects in S3, Google Cloud Storage, Azure, and directories.

    objectstore  the connector ``object_store``
    reading      ``ObjectQueue``: finds objects, and reads one after the other
    content      reads the events of one object
    batches      ``ObjectBatches``: collects events for objects, and writes them
    encoding     encodes events as the content of an object: lines or Parquet, compressed
    columntypes  the types of Parquet columns
    options      the options, and the format and compression that follow from a name
    positions    which objects were read
    stores       lists, reads and writes objects
"""
