"""What Penstock claims of a ring on a GPU, each claim beside its measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator

import msgspec
from benchmarks.gpu.run import Measured
from benchmarks.share.claims import Claim, least, most

Values = list[float]


def gpu_claims(found: list[Measured]) -> list[Claim]:
    """Compute all claims; each ratio is taken within a repeat."""
    return list(_Claims(found).rows())


class _Claims:
    def __init__(self, found: list[Measured]) -> None:
        self._results = {
            (one.result.workload, one.result.arm, one.result.trainers, one.result.repeat): one
            for one in found
            if one.result.finished
        }
        self._trainers = sorted({one.result.trainers for one in found})
        self._repeats = sorted({one.result.repeat for one in found})
        self._workloads = list(dict.fromkeys(one.result.workload for one in found))
        blocks = [one.result.workload for one in found if one.result.arm == "device copies"]
        self._blocks = list(dict.fromkeys(blocks))

    def rows(self) -> Iterator[Claim]:
        for workload in self._workloads:
            values = self._worst(
                min,
                [workload],
                "GPU ring",
                "tensorsocket",
                lambda ours, theirs: ours.result.slowest / theirs.result.slowest,
            )
            what = f"{workload}: slowest trainer of the GPU ring against TensorSocket's, worst K"
            yield least(f"tensorsocket-{workload}", what, 1.2, "", values)
        values = self._worst(
            max,
            self._blocks,
            "GPU ring",
            "device copies",
            lambda ring, copy: ring.result.trainer_us_per_batch - copy.result.trainer_us_per_batch,
        )
        what = "GPU ring: trainer's CPU per batch beyond the device copy, worst K and size"
        yield most("gpu-trainer-cpu", what, 150.0, "us", values)
        yield self._memory()
        for ring in ("GPU ring", "host ring"):
            values = self._ratios(
                "training", ring, "separate", 4, lambda a, b: a.result.together / b.result.together
            )
            what = f"{ring}, K=4 training runs of a ResNet-18: together against separate loaders"
            claim = least(f"training-runs-4-{ring.split()[0]}", what, 3.5, "x", values)
            yield claim if ring == "GPU ring" else msgspec.structs.replace(claim, met=None, note="for comparison")

    def _memory(self) -> Claim:
        """Judge a trainer's peak memory, in blocks; the ring is not PyTorch's memory, so it does not count."""
        values = self._worst(
            max,
            self._blocks,
            "GPU ring",
            "GPU ring",
            lambda ring, _: None if ring.device_bytes is None else ring.device_bytes / ring.block_bytes,
        )
        what = "GPU ring: GPU memory of a trainer beyond the ring, worst K and size"
        return most("gpu-memory", what, 2.0, "batches", values)

    def _worst(
        self,
        worse: Callable[[Iterable[float]], float],
        workloads: list[str],
        arm: str,
        other: str,
        value: Callable[[Measured, Measured], float | None],
    ) -> Values:
        """Return the values of the workload and number of trainers with the worst median."""
        found = [self._ratios(w, arm, other, k, value) for w in workloads for k in self._trainers]
        medians = {statistics.median(values): values for values in found if values}
        return medians[worse(medians)] if medians else []

    def _ratios(
        self,
        workload: str,
        arm: str,
        other: str,
        trainers: int,
        value: Callable[[Measured, Measured], float | None],
    ) -> Values:
        """Compute a value of two results of one repeat, for each repeat that has both."""
        values: Values = []
        for repeat in self._repeats:
            one = self._results.get((workload, arm, trainers, repeat))
            two = self._results.get((workload, other, trainers, repeat))
            if one is not None and two is not None and (ratio := value(one, two)) is not None:
                values.append(ratio)
        return values
