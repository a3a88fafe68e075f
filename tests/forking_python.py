"""In place of Python's executable: has a feeder forked by the fork server in whose folder this file is copied.

It ends when what was forked does. Anything but a feeder gets Python itself.
"""

import json
import os
import select
import socket
import sys

arguments = sys.argv[1:]
if arguments[:2] != ["-P", "-c"]:
    os.execv(sys.executable, [sys.executable, *arguments])
fds = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd(), "fds": fds}
request["is_child"] = False
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(os.path.join(os.path.dirname(sys.argv[0]), "feeders"))
    socket.send_fds(server, [json.dumps(request).encode()], fds)
    pid = int(server.recv(100))
for fd in fds:
    os.close(fd)
try:
    ended = os.pidfd_open(pid)
except ProcessLookupError:
    os._exit(0)
select.select([ended], [], [])
os._exit(0)
