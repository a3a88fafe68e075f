"""Tries which mechanisms can read the files of a folder on this machine."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from penstock.contracts import ByteArray, Extents
from penstock.doctor.finding import Finding
from penstock.errors import PenstockError, ReaderUnavailable
from penstock.io import gds
from penstock.io.disk_names import devices
from penstock.io.files import file_system
from penstock.io.nvme.libnvm import module
from penstock.io.nvme.libnvm.registers import CSTS, FATAL, OFF_THE_BUS, capabilities
from penstock.io.open import MECHANISMS, open_reader

_NBYTES = 65_536


def probe(folder: str | Path = ".") -> list[Finding]:
    """Try each mechanism, on a small file in this folder if it reads files; look at disks for ``"gpu"``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".penstock-probe-") as file:
            content = np.random.default_rng(0).integers(0, 256, _NBYTES, np.uint8)
            file.write(content.tobytes())
            file.flush()
            os.fsync(file.fileno())
            found = [_try(mech, file.name, content) for mech in MECHANISMS]
    except OSError as error:
        found = [
            Finding("readers", "limited", f"no file can be written to {folder}: {error.strerror}", "try elsewhere")
        ]
    return [*found, *map(_look_at, devices())]


def _try(mech: str, path: str, content: ByteArray) -> Finding:
    what = f"reader {mech}"
    try:
        if mech == "gds":
            return Finding(what, "works", f"{gds.version()} opens; no file was read")
        memory: ByteArray = np.frombuffer(mmap.mmap(-1, _NBYTES), np.uint8)
        reader = open_reader(mech, memory, depth=4, threads=1)
        try:
            if mech == "object":
                store = os.environ.get("AWS_ENDPOINT_URL", "AWS")
                return Finding(what, "works", f"{reader.path_taken}; no store was asked, s3:// is {store}")
            file, _ = reader.open(path)
            zero = np.zeros(1, np.int64)
            reader.submit(Extents(zero, zero + file, zero, zero + _NBYTES, zero))
            for failure in reader.completed().failures.values():
                raise failure
            found = f"{reader.path_taken}, on {file_system(path)}"
        finally:
            reader.close()
    except ReaderUnavailable as error:
        return Finding(what, "limited", error.why, error.remedy)
    except (PenstockError, OSError) as error:
        return Finding(what, "fails", str(error))
    if not np.array_equal(memory, content):
        return Finding(
            what, "fails", f"{found}: other bytes came than the file holds", f"do not read with {mech!r}"
        )
    return Finding(what, "works", found)


def _look_at(path: str) -> Finding:
    """Look at a disk under BaM's kernel module without a reset, as another program may be reading it."""
    what = f"disk {path}"
    try:
        disk = module.LibnvmModule(path)
        try:
            registers = disk.registers(mmap.PAGESIZE)
            told, status = capabilities(registers), int(registers[CSTS])
        finally:
            disk.close()
    except ReaderUnavailable as error:
        return Finding(what, "limited", error.why, error.remedy)
    if status == OFF_THE_BUS:
        return Finding(what, "fails", "it does not answer on the bus", "see dmesg, or power it off and on")
    state = "it has failed, and would be reset" if status & FATAL else "no read was tried, which would reset it"
    return Finding(
        what, "works", f"NVMe {told.version}, queues of up to {told.entries} entries; mech='gpu' reads it; {state}"
    )
