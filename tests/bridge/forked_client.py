"""A client of the conformance suite: forked by `conformance_client.py`, whose outcome it exits with.

forked_client.py SOCKET URL
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(sys.argv[1])
    socket.send_fds(asked, [json.dumps([os.getcwd(), dict(os.environ), sys.argv[2]]).encode()], [1, 2])
    sys.exit(int(asked.recv(1) or 1))
