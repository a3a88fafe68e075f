"""Prints measured tables from the committed results: three rows for the README; ``page``: docs/benchmarks.md.

python benchmarks/readme.py [page]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from claim import claim

RESULTS = Path(__file__).parent / "results"
IN_README = {
    "jpeg-together-4": "4 runs on JPEGs: images/s together, one feed against a loader each",
    "jpeg-each-8": "8 runs on JPEGs: the slowest, against one run alone with a loader",
}
"""How the README names claims about sharing on CPUs."""


def readme() -> None:
    share = read("share")
    print(f"{conditions(share)}\n")
    print("| | target | measured |")
    print("|---|---|---|")
    claims = {each["name"]: each for each in share["claims"]}
    for name, words in IN_README.items():
        print(claim_row({**claims[name], "claim": words}))
    print(claim_row(on_a_gpu()))
    judged = [each for each in every_claim() if each["met"] is not None]
    missed = sum(not each["met"] for each in judged)
    print(
        f"\n[All {len(judged)} targets](docs/benchmarks.md), and how they are measured. "
        f"{missed or 'None'} {'was' if missed < 2 else 'were'} missed."
    )


def page() -> None:
    share = read("share")
    print("# Measured\n")
    print(f"{conditions(share)} K is the number of training runs. {HOW}\n")
    print("## The demo\n")
    print("`make demo`: four models trained with a loader each, then on one feed. Each row is one run.")
    print("With `--data DIR` they were once more trained on a feed of an `ImageSource`: the third figure.\n")
    print("| images | together, images/s | CPU-s per 1,000 images |")
    print("|---|---|---|")
    for name in ("default", "imagenet-sample", "cifar10"):
        print(demo_row(read(f"demo-{name}")))
    print("\n## Sharing\n")
    print("The targets were set before measuring.")
    print(f"{WHY_FASTER}\n")
    print_claims([*share["claims"], on_a_gpu()])
    print("\n![Trainers on one feed](../benchmarks/results/share.png)\n")
    joining()
    reading()
    print("## Scripts as they are\n")
    shared = read("autosharing")
    machine = shared["machine"]
    print(f"`penstock run --share`, on {machine['cores']} cores of an {machine['cpu']}, {machine['date'][:10]}:")
    print("`python -m benchmarks autosharing`, `python -m benchmarks fingerprint`.")
    print("`python -m benchmarks witness`, `python -m benchmarks own_clocks`: AMD EPYC, 2026-11-24 and 26.\n")
    print_claims([*shared["claims"], *fingerprint_claims(read("fingerprint")), *of_runs()])
    print("\n## Parts of a feed\n")
    parts = read("selecting")
    machine = parts["machine"]
    print(
        f"JPEGs decoded and cropped, on {machine['cores']} cores of an {machine['cpu']}, {machine['date'][:10]}:"
    )
    print("`python -m benchmarks selecting`.\n")
    print_claims(parts["claims"])
    print("\n## Loaders alone\n")
    machine = read("load-regions")["machine"]
    where = f"{machine['cores']} cores of an {machine['cpu']}, {machine['date'][:10]}"
    print(f"Real ImageNet JPEGs to one training, on {where}:")
    print("`python -m benchmarks loaders DIR`, and `python -m benchmarks tokens`. tf.data and DALI decode only a")
    print("window of each image, as Penstock does where libjpeg-turbo 3 or nvImageCodec is.\n")
    print_claims([*load_claims(), *read("tokens")["claims"], *read("records")["claims"]])
    print("\n## The cache\n")
    cached = read("cache")
    machine = cached["machine"]
    print(f"Of ImageNet JPEGs, as pip installs it, on {machine['cores']} cores of an {machine['cpu']},")
    print(f"{machine['date'][:10]}: `python -m benchmarks cache FOLDER`.\n")
    print_claims(cached["claims"])
    print("\n## The page\n")
    shown = read("page")
    machine = shown["machine"]
    print(f"On {machine['cores']} cores of an {machine['cpu']}, {machine['date'][:10]}, for browser and server:")
    print("Debian's Chromium, drawing without a GPU; `python -m benchmarks page`.\n")
    print_claims(shown["claims"])


def reading() -> None:
    print("\n## Reading\n")
    print("The disk is a virtual one whose speed varies by itself, so ratios are taken within a repeat.\n")
    print_claims(reading_claims())
    print("\n![Throughput against CPU cost of each mechanism](../benchmarks/results/io.png)\n")


def joining() -> None:
    joins = read("join")
    machine = joins["machine"]
    print("## Joining late\n")
    print(
        f"Scripts started by hand, and loops that break off, on {machine['cores']} cores of an {machine['cpu']},"
    )
    print(f"{machine['date'][:10]}: `python -m benchmarks join`.")
    print("[Decision 24](decisions/0024-joints.md) gives the reasons of what was missed.\n")
    print_claims(joins["claims"])


OF_REGIONS = {
    "tf.data": ("tf.data", 1.2),
    "pillow": ("DataLoader and Pillow", 2.0),
    "dali": ("DALI on the CPU", 1.6),
    "simplejpeg": ("DataLoader, simplejpeg and OpenCV", 1.25),
    "spdl": ("SPDL", 1.1),
}
OF_WHOLE_IMAGES = {"simplejpeg": ("DataLoader, simplejpeg and OpenCV", 1.05)}
HOW = (
    "All arms run by turns in one run. "
    "[How it is measured](../benchmarks/README.md); `make bench` repeats the tables of sharing."
)
WHY_FASTER = (
    "Why trainers on one feed can be faster than a `DataLoader` alone: "
    "[decision 6](decisions/0006-collate-into-the-ring.md)."
)


def on_a_gpu() -> dict:
    """Four training runs that are limited by four cores, on a GPU."""
    measured = read("gpu-h200-share-train-4")
    gpu, (claims,) = measured["gpu"]["names"][0], [step["result"]["claims"] for step in measured["steps"]]
    found = next(each for each in claims if each["name"] == "training-runs-4-GPU")
    runs = f"4 ResNet-18s on an {gpu} with 4 cores"
    return {**found, "claim": f"{runs}: images/s together, one feed against a loader each"}


def conditions(share: dict) -> str:
    machine = share["machine"]
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, without a GPU, {machine['date'][:10]}: medians of "
        f"{share['settings']['repeats']} repeats, least and most in brackets."
    )


def of_runs() -> list[dict]:
    return [*read("witness")["claims"], *read("own_clocks")["claims"]]


def every_claim() -> list[dict]:
    sharing = [*read("share")["claims"], *read("autosharing")["claims"], *fingerprint_claims(read("fingerprint"))]
    sources = [*load_claims(), *read("tokens")["claims"], *read("records")["claims"], *read("cache")["claims"]]
    runs = [*of_runs(), *read("page")["claims"], *read("join")["claims"]]
    return [*sharing, on_a_gpu(), *reading_claims(), *read("selecting")["claims"], *sources, *runs]


def load_claims() -> list[dict]:
    """Compare Penstock's ImageSource with other loaders, turn by turn, by each of two decoders."""
    claims: list[dict] = []
    for name, how, targets in (
        ("regions", "ImageSource by regions", OF_REGIONS),
        ("pip", "ImageSource as pip installs it", OF_WHOLE_IMAGES),
    ):
        rates = load_rates(read(f"load-{name}"))
        for arm, (peer, target) in targets.items():
            ratios = [mine / other for mine, other in zip(rates["penstock"], rates[arm], strict=True)]
            claims.append(claim(f"images/s of {how}, against {peer}", "x", ratios, least=target))
    return claims


def load_rates(report: dict) -> dict[str, list[float]]:
    """Images per second of each loader, of a report of today's form or the first one."""
    rates: dict[str, list[float]] = {}
    for each in report.get("results", ()):
        rates.setdefault(each["arm"], []).append(each["figures"]["samples_per_s"])
    for arm, runs in report.get("measured", {}).items():
        rates[arm] = [one["samples_per_s"] for one in runs]
    return rates


def reading_claims() -> list[dict]:
    packed = [
        *packed_claims(read("packed"), "raw", "plain reads into memory like the ring's"),
        *packed_claims(read("packed-huge-pages"), "raw, huge pages", "plain reads, both on huge pages"),
    ]
    return [*read("io")["claims"], *packed, advice_claim(read("advise"))]


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def print_claims(claims: list[dict]) -> None:
    print("| | target | measured |")
    print("|---|---|---|")
    for each in claims:
        if each["met"] is not None or each["measured"] is None:  # else for comparison only
            print(claim_row(each))


def claim_row(row: dict) -> str:
    sign = "≥" if row["at_least"] else "≤"
    target = f"{sign} {number(row['target'])} {row['unit']}".rstrip()
    if row["measured"] is None:
        return f"| {row['claim']} | {target} | not measured: {row['note']} |"
    least, most = row["spread"] or (None, None)
    measured = number(row["measured"]) + ("" if least is None else f" ({number(least)}–{number(most)})")
    measured += " **missed**" if row["met"] is False else ""
    return f"| {row['claim']} | {target} | {measured} |"


def packed_claims(packed: dict, plain: str, what: str) -> list[dict]:
    """Compute for each reader what one trainer gets, as a part of plain reads in that repeat."""
    speeds = {(one["reader"], one["arm"], one["repeat"]): one["mb_s"] for one in packed["measured"]}
    claims: list[dict] = []
    for reader in dict.fromkeys(one["reader"] for one in packed["measured"]):
        repeats = sorted({repeat for known, _, repeat in speeds if known == reader})
        ratios = [speeds[reader, "packed", r] / speeds[reader, plain, r] for r in repeats]
        claims.append(claim(f"PackedSource to one trainer by `{reader}`, against {what}", "", ratios, least=0.9))
    return claims


def advice_claim(advise: dict) -> dict:
    asked = len(advise["needs"])
    what = f"needs, of {asked}, for which `penstock advise` chooses within 10% of the best measured"
    return claim(what, "", [advise["near"]], least=round(asked * 11 / 12))


def fingerprint_claims(measured: dict) -> list[dict]:
    kinds = {
        "folder": f"fingerprint of a folder of {measured['files']:,} images",
        "memory": f"the same of {measured['gigabytes']:g} GB in memory",
    }
    return [
        {
            "claim": what,
            "target": measured[kind]["target_s"],
            "unit": "s",
            "at_least": False,
            "measured": measured[kind]["first_s"],
            "spread": (min(measured[kind]["repeats"]), max(measured[kind]["repeats"])),
            "met": measured[kind]["first_s"] <= measured[kind]["target_s"],
        }
        for kind, what in kinds.items()
    ]


def demo_row(demo: dict) -> str:
    arms = demo_arms(demo)
    ratio = arms[-1]["images_per_s"] / arms[0]["images_per_s"]
    speeds = " → ".join(f"{arm['images_per_s']:,.0f}" for arm in arms)
    costs = " → ".join(f"{arm['cpu_s_per_1000_images']:.2f}" for arm in arms)
    name = demo["data"]["name"] if "data" in demo else demo["settings"]["data"]
    return f"| {name} | {speeds} ({ratio:.1f}×) | {costs} |"


def demo_arms(demo: dict) -> list[dict]:
    """Figures of the demo's arms, of a report of today's form or the first one."""
    if "results" in demo:
        return [each["figures"] for each in demo["results"]]
    return [demo[arm] for arm in ("separate", "shared", "source") if demo.get(arm)]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    page() if sys.argv[1:] == ["page"] else readme()
