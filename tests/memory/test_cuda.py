"""Which GPU a name means. Nothing else of ``memory.cuda`` can run without one; see tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import DeviceUnavailable
from penstock.memory.cuda import gpu_of, index_of, uuid_of

FIRST, SECOND = "6f1d2c3b-0000-1111-2222-333344445555", "a0b1c2d3-9999-8888-7777-666655554444"


def torch_that_sees(*devices: tuple[str, str], current: int = 0) -> Any:
    """What of torch tells devices apart, each of which is (name, UUID as torch gives it)."""
    properties = [SimpleNamespace(name=name, uuid=uuid) for name, uuid in devices]
    return SimpleNamespace(
        cuda=SimpleNamespace(
            device_count=lambda: len(devices),
            current_device=lambda: current,
            get_device_properties=lambda i: properties[i],
        )
    )


TWO = torch_that_sees(("NVIDIA H200", FIRST), ("NVIDIA H200", SECOND), current=1)
INSTANCE = torch_that_sees(("NVIDIA H200 MIG 1g.18gb", SECOND))


@pytest.mark.parametrize(
    ("torch", "device", "index"),
    [
        (TWO, "cuda", 1),
        (TWO, "cuda:0", 0),
        (TWO, f"GPU-{FIRST}", 0),
        (TWO, f"GPU-{SECOND}", 1),
        (TWO, f"GPU-{SECOND.upper()}", 1),
        (INSTANCE, "cuda:0", 0),
        (INSTANCE, f"MIG-{SECOND}", 0),
        (torch_that_sees(("NVIDIA A100", f"GPU-{FIRST}")), f"GPU-{FIRST}", 0),
    ],
)
def test_a_device_is_found_by_number_and_by_uuid(torch, device, index):
    assert index_of(torch, device) == index


def test_uuids_are_written_as_nvidia_smi_does():
    assert uuid_of(TWO, 1) == f"GPU-{SECOND}"
    assert uuid_of(INSTANCE, 0) == f"MIG-{SECOND}"


@pytest.mark.parametrize("device", ["cuda:2", "cuda:-1", "cuda:x", f"GPU-{FIRST[:-1]}0", "GPU-", "gpu"])
def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(device):
    with pytest.raises(DeviceUnavailable, match=rf"cuda:0 \(GPU-{FIRST}\), cuda:1 \(GPU-{SECOND}\)"):
        index_of(TWO, device)


@pytest.mark.parametrize("device", [None, "host", "cpu", "cpu:0"])
def test_the_processor_is_no_gpu(device):
    assert gpu_of(device) is None
