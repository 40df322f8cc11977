"""Parquet files of a stream or a topic, for data lakes.

    export     ``export_table``: writes the entries that an earlier export does not contain
    parquet    one file while it is written
    target     the directory or the URL with the files
    layout     the names of the files

It needs the extra ``arrow``, and for a URL also ``backup``.
"""
