"""Who sent a signal."""

from __future__ import annotations

import os
import pwd

from penstock.linux.process import command_line


def who(pid: int) -> str:
    """Describe a process that sent a signal: its user, and its command as far as it can be seen."""
    if pid == 0:
        return "the kernel"
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"process {pid}, which has ended"
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container
        user = f"user {uid}"
    words = command_line(pid).rstrip(b"\0").split(b"\0")
    command = b" ".join(word.rpartition(b"/")[2] for word in words).decode(errors="replace")
    return f"{user} with process {pid}: {command[:200]}"
