"""What the demo measured, as it is saved in ``demo-report.json``."""

from __future__ import annotations

import msgspec

from penstock.measure import machine

_IDLE_CORES = 0.2


class RunResult(msgspec.Struct, frozen=True):
    """The result of one run in one arm.

    Attributes:
        images: Images that it received in all its epochs.
        images_per_s: Images per second, from the moment when every run of the arm had its first batch.
        waiting: Share of the run's time in which it waited for its loader.
    """

    name: str
    width: int
    learning_rate: float
    batch_size: int
    images: int
    images_per_s: float
    waiting: float
    final_loss: float


class ArmResult(msgspec.Struct, frozen=True):
    """The result of one arm.

    Attributes:
        loader: What fed the runs, in words.
        workers: Loader workers, all together.
        images_per_s: Images per second of all runs, from the moment when all had their first batch.
        wall_s: Time from starting the first process to the end of the last run, imports included.
        cpu_s: CPU time of all processes in that time: trainers, loader workers, feeder.
        cpu_s_per_1000_images: CPU time for each 1,000 images received, both from that moment on.
        peak_pss_bytes: Memory of all processes together; a shared page counts once.
        others_cpu_s: CPU time of everything else on the machine in the arm's wall time.
    """

    loader: str
    workers: int
    images: int
    images_per_s: float
    wall_s: float
    cpu_s: float
    cpu_s_per_1000_images: float
    peak_pss_bytes: int
    peak_processes: int
    others_cpu_s: float
    runs: list[RunResult]


class Ratios(msgspec.Struct, frozen=True):
    """The shared arm over the separate one: above 1 is better for ``images_per_s``, below 1 for the rest."""

    images_per_s: float
    wall_s: float
    cpu_s_per_1000_images: float
    peak_pss_bytes: float


class Data(msgspec.Struct, frozen=True):
    """The data trained on; ``name`` is the last part of the folder's path."""

    name: str
    train_images: int
    mean_bytes: int
    crop_px: int
    note: str


class Machine(msgspec.Struct, frozen=True):
    """The machine of a run of the demo."""

    cpu: str
    cores: int
    memory_bytes: int
    device: str
    system: str
    python: str
    packages: dict[str, str]


class Report(msgspec.Struct, frozen=True):
    """A whole run of the demo."""

    date: str
    machine: Machine
    data: Data
    epochs: int
    separate: ArmResult
    shared: ArmResult
    shared_over_separate: Ratios

    def disturbed(self) -> str:
        """Say what to know about the figures if others used the machine meanwhile; else empty."""
        arms = (self.separate, self.shared)
        before, after = (arm.others_cpu_s / arm.wall_s for arm in arms)
        if max(before, after) < _IDLE_CORES:
            return ""
        return (
            f"The machine was not idle: others used {before:.1f} of {self.machine.cores} cores in the first arm "
            f"and {after:.1f} in the second. Images per second depend on that, CPU time per image hardly does."
        )


def ratios(shared: ArmResult, separate: ArmResult) -> Ratios:
    """Divide one arm's figures by the other's."""
    return Ratios(**{name: getattr(shared, name) / getattr(separate, name) for name in Ratios.__struct_fields__})


def machine_of(measured_on: machine.Machine, device: str) -> Machine:
    """Return the part of a machine's description that the demo saves.

    Args:
        device: What the models were trained on, e.g. "cpu".
    """
    return Machine(
        cpu=measured_on.cpu,
        cores=measured_on.cores,
        memory_bytes=measured_on.memory_bytes,
        device=device,
        system=f"{measured_on.system} {measured_on.kernel}",
        python=measured_on.python,
        packages={"penstock": measured_on.penstock, **measured_on.libraries},
    )
