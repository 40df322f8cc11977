"""Changes of tables, captured from the log of a database.

    postgrescdc    the connector ``postgres_cdc``
    options        its options
    preparation    checks the server, creates the publication, and finds the slot
    replication    the connection that receives the changes
    snapshot       reads the rows that existed before the first change
    pgoutput       decodes the messages of the output plugin pgoutput
    columntext     converts the text of columns to values
"""
