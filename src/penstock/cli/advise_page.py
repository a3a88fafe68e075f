"""What penstock advise prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.basics.terminal import printable_lines
from penstock.cli.command import plain_table
from penstock.io.advice.advice import Advice
from penstock.io.advice.prediction import Reason, Requirement, Setting


def advice_shown(advice: Advice, origin: str) -> RenderableType:
    """Show the choice and its cost, the reasons, the alternatives, and the remedies if it does not suffice."""
    parts: list[RenderableType] = [_asked(advice.need, origin), Text(), _verdict(advice), Text()]
    parts.append(_reasons("why", advice.reasons))
    if advice.alternatives:
        parts += [Text(), _table([advice.choice, *advice.alternatives])]
    if advice.remedies:
        parts += [Text(), _reasons("what to do", advice.remedies)]
    return Group(*parts)


def _asked(need: Requirement, origin: str) -> Text:
    rate = "as fast as may be" if need.rate_mb_s is None else f"at {need.rate_mb_s:,.0f} MB/s"
    text = f"{need.access} reads of samples of {size_text(need.sample_bytes)}, {rate}, to {need.dest}"
    if need.cores is not None:
        text += f", on {need.cores:g} core" + "s" * (need.cores != 1)
    if need.gpu_share is not None:
        text += f", with {need.gpu_share:.0%} of the GPU"
    return Text(text + (f"\nmeasured on {origin}" if origin else ""), "dim")


def _verdict(advice: Advice) -> Text:
    choice = advice.choice
    text = Text()
    text.append("✓ " if advice.suffices else "✗ ", "green" if advice.suffices else "red")
    text.append(str(choice), "bold cyan")
    text.append(f", reads of {size_text(choice.bs_bytes)}")
    text.append(f"\n  reaches {choice.mb_s:,.0f} MB/s")
    if advice.headroom is not None:
        text.append(f", {_compared(1 + advice.headroom)}", "" if advice.suffices else "bold red")
    text.append(f"\n  costs {_cost(choice)}")
    return text


def _compared(part: float) -> str:
    """Say how what is reached compares with what is needed."""
    if part >= 2:
        return f"{_times(part)} what is needed"
    if part >= 1:
        return f"{part - 1:.0%} more than needed"
    if part > 0.5:
        return f"{1 - part:.0%} short of what is needed"
    return f"{_times(1 / part)} as much is needed"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def _cost(choice: Setting) -> str:
    gpu = "" if not choice.sm_share else f" and at most {choice.sm_share:.1%} of the GPU"
    return f"{choice.cores:.2g} cores ({choice.cpu_s_per_gib:.2g} CPU-s for each GiB){gpu}"


def _reasons(heading: str, reasons: Sequence[Reason]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(heading)
    table.add_column("", style="dim", max_width=30)
    for reason in reasons:
        table.add_row(printable_lines(reason.text), printable_lines(reason.tag))
    return table


def _table(choices: Sequence[Setting]) -> Table:
    table = plain_table("the best of each mechanism", "read", "MB/s", "cores", "CPU-s/GiB")
    table.add_column("figures")
    for choice in choices:
        table.add_row(
            str(choice),
            size_text(choice.bs_bytes),
            f"{choice.mb_s:,.0f}",
            f"{choice.cores:.2g}",
            f"{choice.cpu_s_per_gib:.2g}",
            choice.basis,
        )
    return table
