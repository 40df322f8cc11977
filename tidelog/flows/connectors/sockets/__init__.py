"""TCP and UDP.

    tcp          ``tcp_client``, ``tcp_server``
    udp          ``udp_client``, ``udp_server``
    descriptors  waiting for pipes and sockets
"""
