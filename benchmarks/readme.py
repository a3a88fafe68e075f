"""Prints the README's measured tables from the newest committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    share = json.loads((RESULTS / "share.json").read_text())
    machine = share["machine"]
    print(
        f"On {machine['cores']} cores of an {machine['cpu']}, without a GPU, {machine['date'][:10]}; medians of "
        f"{share['settings']['repeats']} repeats, all arms by turns in one run, least and most in brackets "
        "([how](benchmarks/README.md), `make bench` repeats it):\n"
    )
    print("The demo (`make demo`), four models trained with a loader each, then from one feed:\n")
    print("| images | together, images/s | CPU-s per 1,000 images | accuracy, own loaders | accuracy, one feed |")
    print("|---|---|---|---|---|")
    for name in ("default", "imagenet-sample", "cifar10"):
        print(demo_row(json.loads((RESULTS / f"demo-{name}.json").read_text())))
    print("\nEach arm shuffles in its own way, so accuracies differ a little from arm to arm.\n")
    print("The targets that were set beforehand:\n")
    print("| | target | measured |")
    print("|---|---|---|")
    for claim in share["claims"]:
        if claim["met"] is None and claim["measured"] is not None:
            continue  # for comparison only
        sign = "≥" if claim["at_least"] else "≤"
        if claim["measured"] is None:
            measured = f"not measured: {claim['note']}"
        else:
            least, most = claim["spread"]
            missed = " **missed**" if claim["met"] is False else ""
            measured = f"{number(claim['measured'])} ({number(least)}–{number(most)}){missed}"
        print(f"| {claim['claim']} | {sign} {number(claim['target'])} {claim['unit']} | {measured} |")
    print("\n![Trainers on one feed](benchmarks/results/share.png)\n")


def demo_row(demo: dict) -> str:
    own, one = demo["separate"], demo["shared"]
    ratio = one["images_per_s"] / own["images_per_s"]
    speeds = f"{own['images_per_s']:,.0f} → {one['images_per_s']:,.0f} ({ratio:.1f}×)"
    costs = f"{own['cpu_s_per_1000_images']:.2f} → {one['cpu_s_per_1000_images']:.2f}"
    return f"| {demo['data']['name']} | {speeds} | {costs} | {accuracies(own)} | {accuracies(one)} |"


def accuracies(arm: dict) -> str:
    found = [training["accuracy"] for training in arm["trainings"]]
    return "no classes" if None in found else ", ".join(f"{accuracy:.2f}" for accuracy in found)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
