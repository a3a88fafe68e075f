"""Advice follows the measurements, keeps to what may be spent, and never takes what is not what it seems."""

from __future__ import annotations

import re
from functools import partial
from statistics import median

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadSetting
from penstock.io.advice import HEADROOM, SAME, Advice, Requirement, advise, choose_reader
from penstock.io.measurements import Measurement

KIB = 1 << 10


def row(mech: str, bs: int, us: float, cpu_us: float, *, qd: int = 32, threads: int = 1, **more) -> Measurement:
    """Of reads that come every ``us`` and take ``cpu_us`` of CPU time each."""
    told = {"pattern": "random", "cold": True, "iops": 1e6 / us, "mb_s": bs / us, **more}
    return Measurement(mech=mech, bs_bytes=bs, qd=qd, threads=threads, cpu_us_per_op=cpu_us, **told)


def by_law(mech: str, law: tuple[float, ...], sizes, noise=lambda: 1.0, **more) -> list[Measurement]:
    """Rows of a setting whose reads take a + b * size, and c + d * size of CPU time."""
    a, b, c, d = law
    return [row(mech, s, (a + b * s) * noise(), (c + d * s) * noise(), **more) for s in sizes]


SIZES = (4 * KIB, 32 * KIB, 256 * KIB, 1024 * KIB)
DISK = [
    *by_law("uring", (10.0, 1 / 1200, 3.0, 1 / 30_000), SIZES, qd=128),
    *by_law("uring", (40.0, 1 / 1200, 5.0, 1 / 30_000), SIZES, qd=8),
    *by_law("direct", (14.0, 1 / 2000, 12.0, 1 / 40_000), SIZES, qd=128, threads=32),
    *by_law("posix", (60.0, 1 / 1500, 20.0, 1 / 5_000), SIZES, qd=32, threads=8),
]

measurements = st.lists(
    st.builds(
        row,
        st.sampled_from(["posix", "direct", "uring"]),
        st.sampled_from(SIZES),
        st.floats(1, 1e4),
        st.floats(0.1, 1e4),
        qd=st.sampled_from([1, 32, 128]),
        threads=st.sampled_from([1, 8]),
    ),
    min_size=1,
    max_size=30,
)
sizes = st.integers(1, 4 << 20)
rates = st.floats(1e5, 1e11)
budgets = st.floats(0.01, 64)


@given(measurements, sizes, st.none() | rates, st.none() | budgets)
def test_no_advice_costs_more_than_the_cores(rows, sample, rate, cores):
    advice = advise(rows, Requirement(sample_bytes=sample, rate_bytes_per_s=rate, cores=cores))
    most = float("inf") if cores is None else cores * (1 + 1e-9)
    assert advice.choice.cores <= most
    assert all(other.cores <= most for other in advice.alternatives)


@given(measurements, sizes, st.none() | rates, budgets, budgets)
def test_more_cores_never_make_it_worse(rows, sample, rate, some, more):
    few, many = (
        advise(rows, Requirement(sample_bytes=sample, rate_bytes_per_s=rate, cores=cores))
        for cores in sorted([some, more])
    )
    assert many.suffices >= few.suffices
    if rate is None:
        assert many.choice.mb_s >= few.choice.mb_s / SAME * (1 - 1e-9)
    elif few.choice.mb_s >= rate / 1e6 * HEADROOM:
        assert many.choice.cpu_s_per_gib <= few.choice.cpu_s_per_gib * SAME * (1 + 1e-9)


@given(measurements, sizes, rates, st.none() | budgets, st.floats(0.01, 1))
def test_a_need_that_is_met_stays_met_at_a_lower_rate(rows, sample, rate, cores, part):
    asked = advise(rows, Requirement(sample_bytes=sample, rate_bytes_per_s=rate, cores=cores))
    less = advise(rows, Requirement(sample_bytes=sample, rate_bytes_per_s=rate * part, cores=cores))
    assert less.suffices >= asked.suffices


@given(measurements, st.sampled_from(SIZES))
def test_at_a_measured_size_the_choice_is_the_fastest_row(rows, size):
    times: dict[tuple[str, int, int], list[float]] = {}
    for r in rows:
        times.setdefault((r.mech, r.qd, r.threads), []).append(1e6 / r.iops)
    mb_s = {setting: size / median(us) for setting, us in times.items()}
    resized = [msgspec.structs.replace(r, bs_bytes=size) for r in rows]
    choice = advise(resized, Requirement(sample_bytes=size)).choice
    assert choice.basis == "measured"
    assert choice.mb_s == pytest.approx(mb_s[choice.mech, choice.qd, choice.threads])
    assert choice.mb_s * SAME >= max(mb_s.values()) * (1 - 1e-9)


needs = st.builds(
    lambda sample, dataset, **more: Requirement(
        sample_bytes=sample, dataset_bytes=dataset and max(sample, dataset), memory_bytes=1 << 34, **more
    ),
    sizes,
    st.none() | st.integers(1, 1 << 40),
    rate_bytes_per_s=rates,
    cores=budgets,
    dest=st.sampled_from(["host", "cuda:0"]),
    access=st.sampled_from(["random", "sequential"]),
)


@given(measurements, needs)
def test_what_falls_short_has_remedies_and_all_of_it_survives_json(rows, need):
    advice = advise(rows, need)
    assert all(advice.reasons)
    assert bool(advice.remedies) != advice.suffices
    assert msgspec.json.decode(msgspec.json.encode(advice), type=Advice) == advice


def test_on_a_machine_whose_laws_are_known_the_choice_is_within_a_tenth_of_the_best():
    rng = np.random.default_rng(7)
    settings = [("uring", 8, 1), ("uring", 128, 1), ("direct", 32, 8), ("direct", 128, 32), ("posix", 32, 8)]
    ranges = ((5, 80), (2e-4, 1e-3), (1, 30), (1e-5, 3e-4))
    noise = partial(rng.normal, 1, 0.02)
    wrong = []
    for machine in range(40):
        laws = {setting: tuple(rng.uniform(*between) for between in ranges) for setting in settings}
        seen = [
            measured
            for (mech, qd, threads), law in laws.items()
            for repeat in range(3)
            for measured in by_law(mech, law, SIZES, noise, qd=qd, threads=threads, repeat=repeat)
        ]
        for sample in (8 * KIB, 16 * KIB, 64 * KIB, 112 * KIB, 400 * KIB):
            for cores, rate in ((None, None), (0.3, None), (1.0, 300e6), (0.2, 150e6)):
                need = Requirement(sample_bytes=sample, rate_bytes_per_s=rate, cores=cores)
                score = _score(advise(seen, need), laws, need)
                if score < 0.9:
                    wrong.append((machine, need, score))
    assert not wrong


def _score(advice: Advice, laws, need: Requirement) -> float:
    """What the choice truly reaches, or costs, as a part of the best that any setting does."""
    s, limit = need.sample_bytes, need.cores or 1e9
    true = {k: (s / (a + b * s), c + d * s) for k, (a, b, c, d) in laws.items()}
    reached = {k: min(mb_s, limit * s / cpu) for k, (mb_s, cpu) in true.items()}
    mine = (advice.choice.mech, advice.choice.qd, advice.choice.threads)
    able = [k for k in true if reached[k] >= (need.rate_mb_s or 1e12) * HEADROOM]
    if not able:
        return reached[mine] / max(reached.values())
    return min(reached[mine] / (need.rate_mb_s or 0), min(true[k][1] for k in able) / true[mine][1])


def test_between_two_sizes_the_time_of_a_read_grows_evenly():
    choice = advise(by_law("uring", (10.0, 0.001, 2.0, 0.0001), SIZES), Requirement(sample_bytes=112 * KIB)).choice
    assert choice.mb_s == pytest.approx(112 * KIB / (10 + 0.001 * 112 * KIB))
    assert choice.cpu_s_per_gib == pytest.approx((2 / (112 * KIB) + 0.0001) * 2**30 / 1e6)
    assert choice.basis == "interpolated"


@pytest.mark.parametrize(("sample", "mb_s"), [(1 * KIB, 1024 / 20), (2 << 20, (1 << 20) / 1000)])
def test_beyond_what_was_measured_the_advice_says_so_and_promises_nothing_more(sample, mb_s):
    rows = [row("posix", 4 * KIB, 20, 5), row("posix", 1 << 20, 1000, 100)]
    advice = advise(rows, Requirement(sample_bytes=sample))
    assert advice.choice.basis == "extrapolated"
    assert advice.choice.mb_s == pytest.approx(mb_s)
    assert "beyond what was measured" in advice.reasons[0]


def test_a_mechanism_that_reads_pages_is_charged_for_whole_ones():
    rows = [row("direct", 4 * KIB, 10, 5), row("direct", 8 * KIB, 20, 5), row("posix", 4 * KIB, 14, 5)]
    assert advise(rows, Requirement(sample_bytes=4 * KIB)).choice.mech == "direct"
    assert advise(rows, Requirement(sample_bytes=4 * KIB + 1)).choice.mech == "posix"


def test_of_repeats_the_median_counts():
    # Whether the cache was empty says nothing of reads that go past it.
    rows = [row("direct", 4 * KIB, us, 5, repeat=i, cold=i < 2) for i, us in enumerate([100, 110, 1])]
    assert advise(rows, Requirement(sample_bytes=4 * KIB)).choice.mb_s == pytest.approx(4 * KIB / 100)


def test_with_a_rate_the_least_cpu_time_is_chosen_and_without_one_the_speed():
    assert advise(DISK, Requirement(sample_bytes=110_000)).choice.mech == "direct"
    assert advise(DISK, Requirement(sample_bytes=110_000, rate_bytes_per_s=500e6)).choice.mech == "uring"


def test_of_equals_fewer_reads_are_under_way():
    rows = [row("uring", 4 * KIB, 10, 3, qd=128), row("uring", 4 * KIB, 11, 3.05, qd=16)]
    assert advise(rows, Requirement(sample_bytes=4 * KIB, rate_bytes_per_s=1e8)).choice.qd == 16


def test_where_cores_are_scarce_what_takes_little_of_them_wins():
    rows = [row("direct", 4 * KIB, 5, 20, threads=32), row("uring", 4 * KIB, 10, 4)]
    assert advise(rows, Requirement(sample_bytes=4 * KIB, cores=8)).choice.mech == "direct"
    scarce = advise(rows, Requirement(sample_bytes=4 * KIB, cores=0.2))
    assert scarce.choice.mech == "uring"
    assert scarce.choice.mb_s == pytest.approx(0.2 / 0.4 * 4 * KIB / 10)
    assert "at 410 MB/s with 0.4 cores" in scarce.reasons[0]


def test_what_just_reaches_the_rate_is_taken_before_what_takes_less_and_does_not():
    """Neither has a tenth to spare, and they lie within 3% of one another."""
    rows = [row("direct", 4 * KIB, 40, 90), row("uring", 4 * KIB, 41, 4)]
    rate = 4 * KIB / 40 * 0.995 * 1e6
    for cores in (None, 64):
        advice = advise(rows, Requirement(sample_bytes=4 * KIB, rate_bytes_per_s=rate, cores=cores))
        assert (advice.choice.mech, advice.suffices) == ("direct", True)
    short = advise(rows, Requirement(sample_bytes=4 * KIB, rate_bytes_per_s=2 * rate))
    assert not short.suffices
    assert any("more cores alone do not help" in remedy for remedy in short.remedies)


def offered(advice: Advice) -> set[str]:
    return {choice.mech for choice in [advice.choice, *advice.alternatives]}


def test_a_mechanism_that_failed_where_it_is_needed_is_told_and_not_advised():
    gds = Measurement(mech="gds", bs_bytes=4 * KIB, qd=1, threads=1, pattern="random", note="no libcufile here")
    advice = advise([*DISK, gds], Requirement(sample_bytes=4 * KIB))
    assert "gds to host does not work here: no libcufile here" in advice.reasons
    assert "gds" not in offered(advice)
    elsewhere = advise([*DISK, gds], Requirement(sample_bytes=4 * KIB, dest="cuda:0"))
    assert not any("gds" in reason for reason in elsewhere.reasons)


PEER = "cuFile 1.15, peer to peer (nvidia-fs), registered memory, 8 threads"


@pytest.mark.parametrize("cpu_us", [400, 0.1])
@pytest.mark.parametrize(
    "way", ["compatibility mode, through host memory", "way unknown (cuFile counted nothing)"]
)
def test_gpudirect_storage_in_compatibility_mode_is_never_named(way: str, cpu_us: float):
    gds = row("gds", 4 * KIB, 1, cpu_us, dest="cuda:0", path_taken=f"cuFile 1.15, {way}, registered memory")
    need = Requirement(sample_bytes=4 * KIB, dest="cuda:0")
    for others in (DISK, [msgspec.structs.replace(each, dest="cuda:0") for each in DISK]):
        advice = advise([gds, *others], need)
        assert "gds" not in offered(advice)
        assert any(reason.startswith("gds does not read peer to peer here") for reason in advice.reasons)
    with pytest.raises(BadSetting, match=r"those that worked are: none; gds does not read peer to peer"):
        advise([gds], need)
    assert advise([msgspec.structs.replace(gds, path_taken=PEER), *DISK], need).choice.mech == "gds"


def test_the_gpu_that_the_cpu_serves_is_no_choice():
    """It is as fast as io_uring, which does its reads; it takes the GPU's part in tests."""
    emulated = row("gpu", 4 * KIB, 1, 1, path_taken="threads of the CPU, 2 queues, CPU-served: io_uring")
    advice = advise([*DISK, emulated], Requirement(sample_bytes=4 * KIB))
    assert "gpu" not in offered(advice)
    assert any("gpu was served by the CPU" in reason for reason in advice.reasons)
    served = msgspec.structs.replace(emulated, path_taken="threads of the CPU, 2 queues, NVMe disk")
    assert advise([*DISK, served], Requirement(sample_bytes=4 * KIB)).choice.mech == "gpu"


def test_other_tools_are_no_mechanism_of_ours():
    with pytest.raises(BadSetting, match="no row of the benchmark"):
        advise([row("fio:io_uring", 4 * KIB, 1, 1)], Requirement(sample_bytes=4 * KIB))


def test_the_page_cache_counts_only_for_data_that_fit_it():
    rows = [row("posix", 4 * KIB, 1, 1, cold=False), row("direct", 4 * KIB, 20, 5)]
    need = Requirement(sample_bytes=4 * KIB, dataset_bytes=10**9, memory_bytes=10**10)
    assert advise(rows, need).choice.mech == "posix"
    large = advise(rows, msgspec.structs.replace(need, dataset_bytes=10**11))
    assert large.choice.mech == "direct"
    assert any("page cache" in reason for reason in large.reasons)


def test_a_gpu_is_served_by_what_reads_into_it_within_its_share():
    rows = [
        row("direct", 4 * KIB, 10, 5),
        row("gds", 4 * KIB, 20, 9, dest="cuda:0", path_taken=PEER),
        row("gpu", 4 * KIB, 2, 0.1, dest="cuda:0", sm_share=0.1),
    ]
    free = Requirement(sample_bytes=4 * KIB, dest="cuda:0")
    assert advise(rows, free).choice.mech == "gpu"
    tight = advise(rows, msgspec.structs.replace(free, gpu_share=0.02))
    assert tight.choice.mech == "gds"
    assert any("more than 2% of the GPU" in reason for reason in tight.reasons)
    assert advise(rows, msgspec.structs.replace(free, dest="cuda")).choice.mech == "gpu"
    assert advise(rows, msgspec.structs.replace(free, dest="host")).choice.mech == "direct"
    other = advise(rows, msgspec.structs.replace(free, dest="cuda:1"))
    assert other.choice.mech == "direct"
    assert any("without the copy" in reason for reason in other.reasons)


def test_a_sequential_reader_reads_as_large_as_is_best():
    rows = [row("direct", s, us, 5, pattern="sequential") for s, us in ((4 * KIB, 10), (1 << 20, 500))]
    assert advise(rows, Requirement(sample_bytes=1000, access="sequential")).choice.bs_bytes == 1 << 20
    stand_in = advise(DISK, Requirement(sample_bytes=1000, access="sequential"))
    assert any("no row reads sequentially" in reason for reason in stand_in.reasons)
    with pytest.raises(BadSetting, match=r"random reads to host.*direct sequential to host"):
        advise(rows, Requirement(sample_bytes=1000))


def remedies(**need) -> str:
    advice = advise(DISK, Requirement(**{"sample_bytes": 4 * KIB, "memory_bytes": 10**10, **need}))
    assert not advice.suffices
    assert (advice.headroom or 0) < 0
    return "\n".join(advice.remedies)


def test_small_random_samples_are_to_be_packed():
    said = remedies(rate_bytes_per_s=1e9)
    assert re.search(r"pack the data, and read 64 samples at once: 256 KiB reads reach 1,\d+ MB/s \(direct", said)
    assert "which is not enough" not in said
    assert "which is not enough by itself" in remedies(rate_bytes_per_s=1e10)


def test_packing_is_advised_at_sizes_that_were_measured():
    rows = [row("direct", 1 << 20, 500, 50)]
    (packed, *_) = advise(rows, Requirement(sample_bytes=4 * KIB, rate_bytes_per_s=100e6)).remedies
    assert "1 MiB reads reach 2,097 MB/s" in packed


def test_data_that_fit_memory_are_to_be_cached():
    assert "cache the data: 5 GB fit into 10 GB" in remedies(rate_bytes_per_s=1e9, dataset_bytes=5 * 10**9)
    assert "10 GB of memory hold 25% of the data" in remedies(rate_bytes_per_s=1e9, dataset_bytes=4 * 10**10)


def test_more_cores_are_asked_for_only_where_they_help():
    assert "more cores: with 0.19 in place of 0.1, uring" in remedies(rate_bytes_per_s=2.5e8, cores=0.1)
    assert "more cores: with 0.23 in place of 0.1, uring" in remedies(rate_bytes_per_s=3e8, cores=0.1)
    assert "more cores alone do not help" in remedies(rate_bytes_per_s=1e9, cores=0.1)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        *(("sample_bytes", 0), ("cores", 0), ("gpu_share", 2), ("access", "both"), ("dest", "gpu")),
        *(("rate_bytes_per_s", each) for each in (-1, float("nan"))),
        *(("dataset_bytes", each) for each in (0, 4095)),
    ],
)
def test_a_need_that_makes_no_sense_is_refused(setting, wrong):
    with pytest.raises(BadSetting, match=setting):
        Requirement(**{"sample_bytes": 4096, setting: wrong})


def test_the_automatic_reader_follows_the_measurements_of_what_works():
    assert choose_reader(DISK, 4 * KIB)[:3] == ("uring", 128, 1)
    assert choose_reader(DISK, 1 << 20)[:3] == ("direct", 128, 32)
    chosen = choose_reader(DISK, 4 * KIB, works=["posix"])
    assert (chosen.mech, chosen.why) == ("posix", "measured here")


@pytest.mark.parametrize("rows", [None, [], [row("gds", 4 * KIB, 1, 1, dest="cuda:0")]])
def test_without_measurements_the_automatic_reader_follows_a_rule(rows):
    assert choose_reader(rows, 4 * KIB) == ("uring", 128, 1, "not measured here")
    assert choose_reader(rows, 1 << 20, works=["posix", "direct"])[:3] == ("direct", 128, 8)
    assert choose_reader(rows, 4 * KIB, works=["posix", "direct"])[:3] == ("direct", 128, 32)
    assert choose_reader(rows, 4 * KIB, works=["posix"])[:3] == ("posix", 128, 32)
