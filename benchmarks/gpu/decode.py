"""Whether a GPU that decodes JPEGs beside few CPU cores is worth building: rates, costs and pixels.

python -m benchmarks.gpu.decode cpu|torchvision|nvimagecodec OUT [--only BACKEND] [--data FOLDER]

FOLDER (.spike) holds ``jpegs/`` and, in ``nv/``, wheels of nvImageCodec and nvJPEG. The licence of nvImageCodec
forbids to publish its figures: they go to OUT/private-*.json, and its result is a yes or a no.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.gpu.beside import ALLOWED, PART, Claims, Other, cpus, fastest, pin
from benchmarks.gpu.decoders import BACKENDS, GpuSide, opened, pixels
from benchmarks.gpu.record import ROOT

PREDICTIONS = {
    "cpu only, images/s at 2, 4, 16 cores": (700, 1400, 5200),
    "torchvision alone, images/s, batches of 32, 128": (3500, 5000),
    "engines alone, images/s, batches of 32, 128": (5000, 8000),
    "gpu alone, images/s, batches of 32, 128": (3000, 4500),
    "hybrid alone, images/s, batches of 32, 128": (1500, 2000),
    "engines beside the workers against cpu only at 2, 4, 16 cores": (5.0, 3.3, 1.9),
    "torchvision beside the workers against cpu only at 2, 4, 16 cores": (4.0, 2.8, 1.6),
    "cpu-seconds a 1,000 images of the engines' process": 0.2,
    "part of its rate that a training loses beside engines, gpu, hybrid, torchvision": (0.05, 0.25, 0.15, 0.1),
    "bytes of GPU memory": 1.2e9,
    "pixels of 4:2:0, p99.9, with and without interpolated chroma": (3, 45),
}
CORES = (4, 2, 16)
"""The first decides."""
_MOST = 20
"""So many times as long is measured at most until workers alone have made an image."""
WORTH = 2.5


class Settings(argparse.Namespace):
    """What is asked for."""

    step: str
    out: Path
    only: str
    data: Path
    fake: bool
    seconds: float
    batches: Sequence[int] = (32, 128)


class Step:
    """Measures one library, and writes what is known after each measurement."""

    def __init__(self, asked: Settings, stack: ExitStack) -> None:
        name = asked.step + (asked.only and f"-{asked.only}")
        self.asked, self._answer = asked, asked.out / f"decode-{name}.result.json"
        self._is_private = asked.step == "nvimagecodec"
        self._path = asked.out / private(asked.only) if self._is_private else self._answer
        self.found: dict[str, Any] = {"predictions": PREDICTIONS, "cores": len(ALLOWED), "errors": {}}
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.images = self.folder / "images"
        self.images.mkdir()
        files = sorted((asked.data / "jpegs").glob("*.jpg"))
        self.jpegs = [each.read_bytes() for each in files]
        for number, each in zip(range(100 * PART), cycle(files), strict=False):
            (self.images / f"{number:04}.jpg").symlink_to(each.resolve())
        self.claims = Claims(self.folder / "claims")
        stack.callback(self.claims.close)
        self.claims.left(-1)
        self.found["images"] = {"count": len(self.jpegs), "bytes": sum(map(len, self.jpegs))}
        self._environment = fastest()

    def keep(self, group: str, name: str, value: Any) -> None:
        self.found.setdefault(group, {})[name] = value
        _write(self._path, self.found)
        if self._is_private and group == "reaches":
            _write(self._answer, {"nvimagecodec_reaches_2_5_at_4_cores": value})
        print(group, name, flush=True)  # no figure: logs are kept

    def attempt(self, name: str, work: Callable[..., Any], *given: Any) -> Any:
        """Do what may fail without an end of the rest."""
        try:
            return work(*given)
        except Exception as error:
            self.keep("errors", name, f"{type(error).__name__}: {error}"[:500])
            return None

    def workers(self, count: int, **environment: str) -> Other:
        on = cpus(count)
        arguments = ("prepare", str(self.images), str(len(on)), str(self.folder / "claims"))
        return Other(on, *arguments, **{**self._environment, **environment})

    def training(self) -> Other:
        return Other(cpus(2, last=True), "train", "cpu" if self.asked.fake else "cuda")

    def over(
        self, cpu: Other | None, gpu: GpuSide | None, training: Other | None = None, warm: int = 2
    ) -> dict[str, Any]:
        """Measure what runs at once, for some seconds."""
        for _ in range(warm if gpu else 0):
            gpu()
            gpu.failed = 0
        watch = self.watch()
        before, own = cpu.cpu_s() if cpu else 0.0, time.process_time()
        begin, gpu_images = time.monotonic(), 0
        seconds, most_s = self.asked.seconds, _MOST * self.asked.seconds
        while (now := time.monotonic() - begin) < seconds or (
            cpu and now < most_s and not cpu.rate(begin, begin + now)  # or nothing compares
        ):
            if gpu:
                gpu_images += gpu()
            else:
                time.sleep(max(seconds - now, 0.01))
        seconds = time.monotonic() - begin
        used_s = (cpu.cpu_s() - before if cpu else 0.0) + (own_s := time.process_time() - own) * bool(gpu)
        by_gpu, by_cpu = gpu_images / seconds, cpu.rate(begin, begin + seconds) if cpu else 0.0
        row = {"images_per_s": by_gpu + by_cpu, "of_gpu": by_gpu, "of_cpu": by_cpu, "seconds": seconds}
        if by_gpu + by_cpu:
            row["cpu_s_per_1000"] = 1000 * used_s / seconds / (by_gpu + by_cpu)
        if gpu_images:
            row |= {"gpu_process_cpu_s_per_1000": 1000 * own_s / gpu_images, "failed": gpu.failed}
        if training:
            row["trained_per_s"] = training.rate(begin, begin + seconds)
        return {key: float(f"{value:.5g}") for key, value in row.items()} | watch()

    def watch(self) -> Callable[[], dict[str, Any]]:
        """Begin to watch the GPU; the function that is returned tells what it did."""
        from penstock.errors import GpuMissing
        from penstock.gpus.gpm import Gpm
        from penstock.gpus.nvml import answer_of, nvml

        try:
            known = nvml()
        except GpuMissing:
            return dict
        handle = known.nvmlDeviceGetHandleByIndex(0)
        gpm = answer_of(Gpm, known.nvmlDeviceGetUUID(handle), 2, *range(40, 48))
        answer_of(gpm.read) if gpm else None

        def told() -> dict[str, Any]:
            sm, *engines = (answer_of(gpm.read) if gpm else None) or [None] * 9
            if gpm:
                gpm.close()
            of_jpeg = answer_of(getattr(known, "nvmlDeviceGetJpgUtilization", lambda _: None), handle)
            used = known.nvmlDeviceGetMemoryInfo(handle).used
            return {"sm": sm, "engines": engines, "jpeg": of_jpeg and of_jpeg[0], "used_bytes": used}

        return told

    def split(self, cpu: Other, gpu: GpuSide, rate: float) -> dict[str, float]:
        """Share out a known number of parts: who is free takes the next."""
        parts = int(rate * self.asked.seconds * 1.5 / PART)
        begin, by_gpu = time.monotonic(), 0
        self.claims.left(parts)
        while taken := self.claims.take(max(1, gpu.batch // PART)):
            by_gpu += gpu(taken * PART)
        gpu_s = time.monotonic() - begin
        cpu.wait(10.0)
        seconds, by_cpu = time.monotonic() - begin, cpu.done_since(begin)
        self.claims.left(-1)
        return {"images_per_s": (by_gpu + by_cpu) / seconds, "of_gpu": by_gpu, "of_cpu": by_cpu,
                "gpu_s": gpu_s, "seconds": seconds}  # fmt: skip


def measure_cpu(step: Step) -> None:
    """Measure the CPU's workers alone."""
    for count in CORES:
        with step.workers(count) as cpu:
            step.keep("cpu", f"{count} cores", {**step.over(cpu.ready(), None), "decoder": cpu.name})
    with step.workers(CORES[0], PENSTOCK_TURBOJPEG="", PENSTOCK_DECODER="simplejpeg") as cpu:
        step.keep("cpu", f"{CORES[0]} cores, whole", {**step.over(cpu.ready(), None), "decoder": cpu.name})


def measure_library(step: Step, training: Other | None) -> None:
    """Measure a library's backends: alone, beside the CPU's workers, beside a training, and their pixels."""
    asked = step.asked
    make, finishers = opened(asked.step, asked.data, fake=asked.fake)
    backends = [each for each in BACKENDS[asked.step] if asked.only in ("", each)]
    sides: dict[str, GpuSide] = {}
    for backend in backends:
        side = step.attempt(backend, lambda at: GpuSide(make(at, True), finishers["kernel"], step.jpegs), backend)
        for batch in asked.batches if side else ():
            side.batch = batch
            if row := step.attempt(f"{backend} alone", step.over, None, side):
                sides[backend] = side
                step.keep("alone", f"{backend}, batches of {batch}", {**row, "refused": side.refused})
    if "own" in finishers:
        own = GpuSide(make("", True), finishers["own"], step.jpegs)
        step.keep("alone", "its own resize", step.attempt("own", step.over, None, own))
    for count in CORES:
        beside(step, sides, count)
    if best := step.found.get("best"):
        name, side = best["backend"], sides[best["backend"]]
        pin(cpus(CORES[0]))
        with step.workers(CORES[0]) as cpu:
            row = step.attempt("split", step.split, cpu.ready(), side, best["images_per_s"])
            step.keep("split", f"{CORES[0]} cores, {name}", row)
        if training:
            training.pause(on=False)
            time.sleep(0.0 if asked.fake else 1.0)
            for name, side in (("alone", None), *sides.items()):
                step.keep("training", name, step.attempt(name, step.over, None, side, training))
            training.pause(on=True)
    for backend in sides:
        for fancy in (True, False) if asked.step == "nvimagecodec" else (True,):
            if decoder := step.attempt(backend, make, backend, fancy):
                table = step.attempt(f"{backend} pixels", pixels, decoder, step.jpegs)
                step.keep("pixels", f"{backend}, asked for interpolated chroma: {fancy}", table)


def beside(step: Step, sides: dict[str, GpuSide], count: int) -> None:
    """Measure the CPU's workers alone and beside each backend, on the same processors."""
    pin(cpus(count))
    decides = count == CORES[0]
    with step.workers(count) as cpu:
        alone = step.over(cpu.ready(), None)
        step.keep("beside", f"{count} cores, cpu only", {**alone, "decoder": cpu.name})

        def measure(backend: str, batch: int, more: str = "") -> None:
            side, name = sides[backend], f"{count} cores, {backend}, batches of {batch}{more}"
            side.batch = batch
            if not (row := step.attempt(name, step.over, cpu, side)):
                return
            row["ratio"] = round(row["images_per_s"] / alone["images_per_s"], 3)
            step.keep("beside", name, row)
            if decides and row["ratio"] > step.found.get("best", {}).get("ratio", 0.0):
                step.found["best"] = {"backend": backend, "batch": batch, **row}
                step.keep("reaches", f"{WORTH} at {count} cores", row["ratio"] >= WORTH)

        for backend in sides:
            for batch in step.asked.batches if decides else step.asked.batches[-1:]:
                measure(backend, batch)
        if decides:
            again = step.over(cpu, None)
            step.keep("beside", f"{count} cores, cpu only, again", again)
            cpu.yield_to_others()
            for backend in sides:
                measure(backend, step.asked.batches[-1], ", workers at nice 5")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one step."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.decode", description=__doc__)
    asked.add_argument("step", choices=("cpu", "torchvision", "nvimagecodec"))
    asked.add_argument("out", type=Path)
    asked.add_argument("--only", default="", help="one backend, if the step of all has not come to its end")
    asked.add_argument("--data", type=Path, default=ROOT / ".spike")
    asked.add_argument("--seconds", type=float, default=2.0)
    asked.add_argument("--fake", action="store_true", help="stand-ins for what needs a GPU")
    settings = asked.parse_args(arguments, Settings())
    if why := _not_run(settings):
        print(why)
        return 2
    with ExitStack() as stack:
        step = Step(settings, stack)
        if settings.step == "cpu":
            measure_cpu(step)
            return 0
        training = stack.enter_context(step.training())
        if trains := step.attempt("training", training.ready):
            training.pause(on=True)
        step.keep("memory", "before", step.watch()())
        measure_library(step, trains)
        return int("reaches" not in step.found)


def _not_run(settings: Settings) -> str:
    if not list(settings.data.glob("jpegs/*.jpg")):
        return "there are no JPEGs"
    if settings.step == "nvimagecodec" and not settings.fake and not list(settings.data.glob("nv/*.whl")):
        return "there are no wheels of nvImageCodec"
    measured = settings.only and "training" in _read(settings.out / private())
    return "all backends have been measured" if measured else ""


def private(only: str = "") -> str:
    """Name the file of figures that must not be published."""
    return f"private-decode{only and f'-{only}'}.json"


def _write(path: Path, found: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.rename(path)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return {}


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)  # libraries may die of the order in which they are unloaded
