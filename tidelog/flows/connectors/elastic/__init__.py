"""The bulk API of Elasticsearch and OpenSearch.

    elastic  the sink ``elastic``; each document is settled by its own result
"""
