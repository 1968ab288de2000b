"""`moeparity ARGUMENTS` in a fork of a warm process: `python -S tests/launch.py SOCKET ARGUMENTS`; see tests/warm.py.

Takes as little from the library as it can: it starts in a fraction of what `import torch` takes.
"""

import json
import os
import socket
import sys


def is_open(number: int) -> bool:
    """Whether a descriptor is open. Python opens none in place of closed ones."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


STREAMS = [number for number in range(3) if is_open(number)]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect(sys.argv[1])
    request = {
        "module": "moeparity.cli",
        "name": "moeparity",
        "arguments": sys.argv[2:],
        "folder": os.getcwd(),  # noqa: PTH109
        "variables": dict(os.environ),
        "open": STREAMS,
        "forks": False,
    }
    socket.send_fds(asking, [json.dumps(request).encode()], STREAMS)
    asking.recv(64)
    code = json.loads(asking.recv(64))["code"]
os._exit(code if code >= 0 else 128 - code)
