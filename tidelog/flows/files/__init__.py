"""Flows in YAML: files are read and checked whole before anything runs.

    text         YAML as plain values, with the line of each
    environment  ${NAME} in a file that asks for it
    admission    what flows that come over HTTP may not name
    document     what a file says, as flows: all problems at once, each with file, line and path
    picture      a flow as a graph, as Mermaid
"""

from tidelog.flows.files.document import FlowDocument, no_server, read_files, read_flow, read_text

__all__ = ["FlowDocument", "no_server", "read_files", "read_flow", "read_text"]
