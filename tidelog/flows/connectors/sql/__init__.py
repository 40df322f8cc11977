"""Databases: PostgreSQL, MySQL or MariaDB, and SQLite.

    sql           the connector ``sql``: a source and a sink
    query         the connector ``sql_query``, which executes a statement for each event
    tablerows     events as rows of a table
    changerows    changes of rows, which are applied to a table
    rowwrites     writes batches of rows and finds those that the database rejects
    rowreader     the rows of a query, its cursor, and the stored position
    options       the options, and the URL of a database
    postgres      PostgreSQL
    mysql         MySQL and MariaDB
    sqlite        SQLite
    database      what they have in common
    statements    SQL with parameters such as ``:customer.id``, and statements that insert rows
    columnvalues  values of events in columns, and values of columns in events
"""
