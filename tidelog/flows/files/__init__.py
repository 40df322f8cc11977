"""Flows in YAML. Files are read and validated completely before anything runs.

    document      reads flow files; reports all problems with file, line and path
    testcases     the tests in flow files
    yamltext      YAML as plain values, with the line of each
    environment   replaces ${NAME}, if the file declares the variable
    restrictions  what flows that arrive over HTTP may not use
    diagram       a flow as a graph, in Mermaid
"""

from tidelog.flows.files.document import FileHeader, FlowDocument, no_server, read_files, read_flow, read_text
from tidelog.flows.files.testcases import FlowCase

__all__ = ["FileHeader", "FlowCase", "FlowDocument", "no_server", "read_files", "read_flow", "read_text"]
