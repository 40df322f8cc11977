"""The stream engine: IDs, macro nodes, streams, groups, the keyspace and its records. No I/O, no clock."""
