"""What the demo measured, as it is saved in ``demo-report.json``."""

from __future__ import annotations

import msgspec

from penstock.runs import machine

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
    """One arm over another: above 1 is better for ``images_per_s``, below 1 for the rest."""

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
    """A whole run of the demo.

    Attributes:
        separate: Each run with its own DataLoader.
        shared: All runs on one feed of such a DataLoader.
        source: All runs on one feed of an ImageSource; None for the demo's own images.
    """

    date: str
    machine: Machine
    data: Data
    epochs: int
    separate: ArmResult
    shared: ArmResult
    shared_over_separate: Ratios
    source: ArmResult | None = None
    source_over_shared: Ratios | None = None

    @property
    def arms(self) -> dict[str, ArmResult]:
        """All arms, the first one first, by a short name."""
        arms = {"each its loader": self.separate, "one feed": self.shared}
        return arms if self.source is None else {**arms, "ImageSource": self.source}

    @property
    def last_over_separate(self) -> Ratios:
        return ratios(list(self.arms.values())[-1], self.separate)

    def disturbed(self) -> str:
        """Say what to know about the figures if others used the machine meanwhile; else empty."""
        others = [arm.others_cpu_s / arm.wall_s for arm in self.arms.values()]
        if max(others) < _IDLE_CORES:
            return ""
        *some, last = (f"{cores:.1f}" for cores in others)
        return (
            f"The machine was not idle: others used {', '.join(some)} and {last} of {self.machine.cores} cores in "
            "the arms. Images per second depend on that, CPU time per image hardly does."
        )


def ratios(after: ArmResult, before: ArmResult) -> Ratios:
    """Divide one arm's figures by another's."""
    return Ratios(**{name: getattr(after, name) / getattr(before, name) for name in Ratios.__struct_fields__})


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
