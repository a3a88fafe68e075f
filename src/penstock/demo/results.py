"""What the demo measured, as it is saved in ``demo-report.json``."""

from __future__ import annotations

import msgspec

from penstock.measure import machine

_IDLE_CORES = 0.2


class TrainingResult(msgspec.Struct, frozen=True):
    """One training in one arm.

    Attributes:
        images: Images that it received, in all its epochs.
        images_per_s: From the moment when every training of the arm had its first batch.
        waiting: The share of that training's time in which it waited for its loader.
        accuracy: On the test images; None where there are none, or labels mean nothing.
    """

    name: str
    width: int
    learning_rate: float
    batch_size: int
    images: int
    images_per_s: float
    waiting: float
    final_loss: float
    accuracy: float | None


class ArmResult(msgspec.Struct, frozen=True):
    """All trainings of one arm.

    Attributes:
        loader: What fed them, in words.
        workers: Loader workers, all together.
        images_per_s: All trainings together, from the moment when all had their first batch.
        wall_s: From starting the first process to the end of the last training, imports and test included.
        cpu_s: CPU time in that time, of all processes: trainers, loader workers, feeder.
        cpu_s_per_1000_images: CPU time from the moment that counts for ``images_per_s``, for each 1,000
            images that a training received from then on.
        peak_pss_bytes: Memory of all processes together; a page that n share counts once.
        others_cpu_s: CPU time in the arm's wall time of what else runs on the machine.
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
    trainings: list[TrainingResult]


class Ratios(msgspec.Struct, frozen=True):
    """The shared arm over the separate one: above 1 is better for ``images_per_s``, below 1 for the rest."""

    images_per_s: float
    wall_s: float
    cpu_s_per_1000_images: float
    peak_pss_bytes: float


class Data(msgspec.Struct, frozen=True):
    """What was trained on; ``name`` is the folder's last name."""

    name: str
    train_images: int
    test_images: int
    classes: int
    mean_bytes: int
    crop_px: int
    note: str


class Machine(msgspec.Struct, frozen=True):
    """Where it ran."""

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
        """What to know about the figures if others used the machine meanwhile, or ""."""
        arms = (self.separate, self.shared)
        before, after = (arm.others_cpu_s / arm.wall_s for arm in arms)
        if max(before, after) < _IDLE_CORES:
            return ""
        return (
            f"The machine was not idle: others used {before:.1f} of {self.machine.cores} cores in the first arm "
            f"and {after:.1f} in the second. Images per second depend on that, CPU time per image hardly does."
        )


def ratios(shared: ArmResult, separate: ArmResult) -> Ratios:
    """One arm over the other."""
    return Ratios(**{name: getattr(shared, name) / getattr(separate, name) for name in Ratios.__struct_fields__})


def machine_of(measured_on: machine.Machine, device: str) -> Machine:
    """The part of a machine's description that the demo saves.

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
