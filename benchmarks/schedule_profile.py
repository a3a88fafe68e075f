"""How near `penstock schedule profile` comes to the truth, for jobs that say themselves what a sample takes.

python -m benchmarks.schedule_profile [--repeats 3] [--json benchmarks/results/schedule-profile.json]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from benchmarks.claim import claim, report
from rich.progress import track

from penstock.autosharing.options import ShareOptions
from penstock.runs.record import RunPlan
from penstock.runs.store import Store
from penstock.schedule.profile import profiled

JOB = Path(__file__).with_name("synthetic_job.py")


class Truth(NamedTuple):
    """A job: how it loads, whether ``--share`` is asked for it, and seconds a sample."""

    form: str
    share: bool
    prepare_s: float
    own_s: float
    step_s: float

    def plan(self, folder: str) -> RunPlan:
        words = (str(JOB), self.form, *map(str, self[2:]), "800", "1000")
        options = ShareOptions() if self.share else None
        return RunPlan(command=(sys.executable, *words), name="job", directory=folder, share=options)


JOBS = {
    "share(), 2 workers, loader slow": Truth("share", False, 0.008, 0.0002, 0.004),
    "share(), 2 workers, GPU slow": Truth("share", False, 0.002, 0.0002, 0.02),
    "--share, 2 workers": Truth("2", True, 0.004, 0.0002, 0.01),
    "DataLoader, 2 workers": Truth("2", False, 0.004, 0.0002, 0.01),
    "DataLoader, no workers": Truth("0", False, 0.004, 0.0002, 0.01),
    "share() of an iterable": Truth("numpy", False, 0.006, 0.0002, 0.006),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    preparation, gpu, found = list[float](), list[float](), list[object]()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "store")) as store:
        for name, truth in track([*JOBS.items()] * chosen.repeats, "profiles"):
            profile = profiled(store, truth.plan(folder))
            preparation.append(abs(profile.preparation_s / truth.prepare_s - 1))
            gpu.append(abs(profile.gpu_s / (truth.step_s + truth.own_s) - 1))
            found.append({"job": name, "truth": truth._asdict(), "profile": msgspec.to_builtins(profile)})
    how = f"six jobs, {chosen.repeats} times: difference from the truth, relative to it, worst"
    claims = [
        claim(f"CPU-seconds of preparation, {how}", "", [max(preparation)], most=0.1),
        claim(f"seconds of a step, {how}", "", [max(gpu)], most=0.1),
    ]
    report(claims, chosen.json, profiles=found)


if __name__ == "__main__":
    main()
