"""TCP, Unix sockets, and UDP.

    tcp          ``tcp_client``, ``tcp_server``
    udp          ``udp_client``, ``udp_server``
    streams      the address of a stream: TCP or a Unix socket, with or without TLS
    descriptors  waiting for pipes and sockets
"""
