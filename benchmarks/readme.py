"""Prints the README's measured tables from the newest committed results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    share = read("share")
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
        print(demo_row(read(f"demo-{name}")))
    print("\nEach arm shuffles in its own way, so accuracies differ a little from arm to arm.\n")
    print("Sharing, and the targets that were set beforehand:\n")
    print_claims(share["claims"])
    print("\n![Trainers on one feed](benchmarks/results/share.png)\n")
    print("Reading, from a virtual disk whose speed varies by itself, beside fio:\n")
    packed = [
        *packed_claims(read("packed"), "raw", "plain reads into memory like the ring's"),
        *packed_claims(read("packed-huge-pages"), "raw, huge pages", "plain reads, both on huge pages"),
    ]
    print_claims([*read("io")["claims"], *packed, advice_claim(read("advise"))])
    print("\n![Throughput against CPU cost of each mechanism](benchmarks/results/io.png)\n")


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def print_claims(claims: list[dict]) -> None:
    print("| | target | measured |")
    print("|---|---|---|")
    for claim in claims:
        if claim["met"] is None and claim["measured"] is not None:
            continue  # for comparison only
        sign = "≥" if claim["at_least"] else "≤"
        if claim["measured"] is None:
            measured = f"not measured: {claim['note']}"
        else:
            least, most = claim["spread"] or (None, None)
            measured = number(claim["measured"]) + ("" if least is None else f" ({number(least)}–{number(most)})")
            measured += " **missed**" if claim["met"] is False else ""
        print(f"| {claim['claim']} | {sign} {number(claim['target'])} {claim['unit']} | {measured} |")


def packed_claims(packed: dict, plain: str, what: str) -> list[dict]:
    """Of each reader: what one trainer gets, as a part of plain reads in the same repeat."""
    speeds = {(one["reader"], one["arm"], one["repeat"]): one["mb_s"] for one in packed["measured"]}
    claims: list[dict] = []
    for reader in dict.fromkeys(one["reader"] for one in packed["measured"]):
        repeats = sorted({repeat for known, _, repeat in speeds if known == reader})
        ratios = [speeds[reader, "packed", r] / speeds[reader, plain, r] for r in repeats]
        claims.append(
            {
                "claim": f"PackedSource to one trainer by `{reader}`, against {what}",
                "target": 0.9,
                "unit": "",
                "at_least": True,
                "measured": median(ratios),
                "spread": (min(ratios), max(ratios)),
                "met": median(ratios) >= 0.9,
            }
        )
    return claims


def advice_claim(advise: dict) -> dict:
    asked = len(advise["needs"])
    target = round(asked * 11 / 12)
    return {
        "claim": f"needs, of {asked}, for which `penstock advise` chooses within 10% of the best measured",
        "target": target,
        "unit": "",
        "at_least": True,
        "measured": advise["near"],
        "spread": None,
        "met": advise["near"] >= target,
    }


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
