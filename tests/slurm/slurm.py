"""A whole Slurm on this machine: Debian's, of one node of four cores, with all of its state in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from tests.forked import eventually
from tests.support.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=10
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MpiDefault=none
SwitchType=switch/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES State=UP GraceTime=5
PartitionName=first Nodes=ALL State=UP PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    if os.getuid() != 0:
        return "its daemons need root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {', '.join(missing)}: apt-get install slurm-wlm munge" if missing else ""


class Slurm:
    """Slurm's daemons, and munge's, in one folder.

    Args:
        folder: Where their state lies; of short name, since it holds sockets.

    Attributes:
        conf: Their configuration, for ``SLURM_CONF``.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(mode=0o700)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        controller, node = free_port(), free_port()
        self.conf = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(_CONF.format(folder=folder, host=host, controller=controller, node=node))
        munge = {name: f"{folder}/munge/{name}" for name in ("socket", "log-file", "pid-file", "seed-file")}
        files = [f"--{name}={path}" for name, path in munge.items()]
        self._daemons: list[psutil.Process] = []
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *files)
        eventually((folder / "munge" / "socket").exists, "munged does not come up")
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        eventually(lambda: self.ask("sinfo", "-h", "-o", "%T").strip() == "idle", "Slurm does not come up")

    def ask(self, *words: str) -> str:
        """Return what one of Slurm's commands prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout

    def job(self) -> str:
        """Return the number of the only job."""
        return self.ask("squeue", "-h", "-o", "%i").strip()

    def close(self) -> None:
        """End all of it."""
        ended = [each for daemon in self._daemons for each in (daemon, *_below(daemon))]
        for process in reversed(ended):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ended)

    def _start(self, *words: str) -> None:
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        quiet = subprocess.DEVNULL
        self._daemons.append(
            psutil.Popen(words, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        )


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
