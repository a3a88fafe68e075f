"""The results of the GPU benchmark as a table for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.gpu.run import Measured
from rich.table import Table

from penstock.basics.results import results_table, short


def gpu_table(found: list[Measured]) -> Table:
    """Make a table of medians over the repeats; the slowest trainer's rate has its least and most."""
    caption = (
        "blocks (batches) a second of the slowest trainer and of all; per block: trainer's CPU, bytes to the GPU "
        "as counted and as PCIe has it; CPU-milliseconds of feeder and trainers per 1,000 samples delivered"
    )
    headings = ("K", "fed by", "slowest", "together", "CPU µs", "MB", "PCIe MB", "CPU ms", "GPU MB", "SMs")
    table = results_table("what", *headings, title="One GPU")
    notes: list[str] = []
    for what, trainers, arm in dict.fromkeys((o.result.workload, o.result.trainers, o.result.arm) for o in found):
        mine = [o for o in found if (o.result.workload, o.result.trainers, o.result.arm) == (what, trainers, arm)]
        done = [one for one in mine if one.result.finished]
        if not done:
            table.add_row(what, str(trainers), arm, mine[0].result.note)
            continue
        notes += [one.activity.note for one in done if one.activity.note]
        slowest = [min(one.result.batches_per_s) for one in done]
        table.add_row(
            what,
            str(trainers),
            arm,
            f"{short(median(slowest))} ({short(min(slowest))} – {short(max(slowest))})",
            short(median(sum(one.result.batches_per_s) for one in done)),
            short(median(one.result.trainer_us_per_batch for one in done)),
            short(median(one.host_to_device_bytes for one in done) / 1e6),
            _known(done, _received_mb),
            short(1e3 * median(one.result.feeder_cpu_s + one.result.trainers_cpu_s for one in done)),
            _known(done, lambda one: None if one.device_bytes is None else one.device_bytes / 1e6),
            _known(done, lambda one: one.activity.sm_active),
        )
    table.caption_justify = "left"
    table.caption = "\n".join([caption, *dict.fromkeys(notes)])
    return table


def _received_mb(one: Measured) -> float | None:
    """Return the MB received over PCIe per block for all trainers."""
    if one.activity.received_bytes is None:
        return None
    blocks_per_s = sum(one.result.batches_per_s) / one.result.trainers
    return one.activity.received_bytes / one.activity.seconds / blocks_per_s / 1e6


def _known(found: list[Measured], value: Callable[[Measured], float | None]) -> str:
    """Format the median of the known values; a dash if there is none."""
    values = [seen for one in found if (seen := value(one)) is not None]
    return short(median(values)) if values else "–"
