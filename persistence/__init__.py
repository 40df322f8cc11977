"""What survives: the tail, the journal, the store, and how they become a keyspace again."""
