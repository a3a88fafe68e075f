"""`make gpu PART=decode` with stand-ins for what needs a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from benchmarks.gpu import beside, decode, report
from benchmarks.gpu.decoders import AUGMENTATION, KERNEL, SIDE, Fake, FakeFinisher, Frame, GpuSide, boxes, pixels
from benchmarks.gpu.record import ROOT

pytestmark = pytest.mark.whole
ON_A_CPU = """
#include <algorithm>
using std::max; using std::min;
#define __global__
static struct { int x, y, z; } blockIdx, blockDim, threadIdx;
%s
extern "C" void run(const unsigned long long* images, const int* how, unsigned char* out, int side, int count) {
  blockDim.x = blockDim.y = side;
  for (blockIdx.z = 0; blockIdx.z < count; ++blockIdx.z)
    for (threadIdx.y = 0; threadIdx.y < side; ++threadIdx.y)
      for (threadIdx.x = 0; threadIdx.x < side; ++threadIdx.x) finish(images, how, out, side);
}
"""


def pictures(count: int, largest: int = 300) -> list[bytes]:
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(60, largest, (count, 2)).tolist()
    coarse = [drawn.integers(0, 256, (5, 5, 3), np.uint8) for _ in sizes]
    images = [np.ascontiguousarray(np.resize(each, (*size, 3))) for each, size in zip(coarse, sizes, strict=True)]
    return [
        simplejpeg.encode_jpeg(image, colorsubsampling=("444", "420")[n % 2]) for n, image in enumerate(images)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "jpegs").mkdir(parents=True)
    for number, jpeg in enumerate(pictures(6)):
        (tmp_path / "data" / "jpegs" / f"{number}.jpg").write_bytes(jpeg)
    return tmp_path / "data"


def training(step: Any) -> beside.Other:
    """What starts sooner than torch, with parts of its own: it is stopped, and would hold the others' lock."""
    claims = step.folder / "claims of a training"
    whole = beside.Claims(claims)
    whole.left(-1)
    whole.close()
    arguments = ("prepare", str(step.images), "1", str(claims))
    return beside.Other(beside.cpus(1), *arguments, **step._environment)


def measured(step: str, data: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Path:
    out = data.parent / "out"
    out.mkdir(exist_ok=True)
    monkeypatch.setattr(decode, "CORES", (2,))
    monkeypatch.setattr(decode.Settings, "batches", (8,))
    monkeypatch.setattr(beside, "_READY_S", 100.0)
    monkeypatch.setattr(decode.Step, "training", training)
    monkeypatch.setitem(decode.BACKENDS, "nvimagecodec", ("engines", "gpu"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", ROOT))))
    options = ("--data", str(data), "--seconds", "0.1", "--fake", *more)
    mine = os.sched_getaffinity(0)
    try:
        assert decode.main([step, str(out), *options]) == 0
    finally:
        beside.pin(sorted(mine))
    return out


def test_figures_of_nvimagecodec_are_apart_and_only_a_yes_or_no_is_kept(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = measured("nvimagecodec", data, monkeypatch)
    assert sorted(each.name for each in out.iterdir()) == [
        "decode-nvimagecodec.result.json",
        "private-decode.json",
    ]
    kept = json.loads((out / "decode-nvimagecodec.result.json").read_text())
    assert list(kept) == ["nvimagecodec_reaches_2_5_at_4_cores"]
    assert isinstance(next(iter(kept.values())), bool)
    found = json.loads((out / "private-decode.json").read_text())
    assert not found["errors"]
    assert set(found) >= {"predictions", "alone", "beside", "best", "reaches", "split", "training", "pixels"}
    row = found["beside"]["2 cores, engines, batches of 8"]
    assert row["of_gpu"] > 0
    assert row["of_cpu"] > 0
    assert row["cpu_s_per_1000"] > 0
    said = capsys.readouterr().out
    assert str(row["images_per_s"]) not in said
    results = data.parent / "results"
    results.mkdir()
    page = data.parent / "page.md"
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    assert report.main(["--out", str(out), "--results", str(results), "--page", str(page)]) == 0
    assert not list(results.iterdir())
    assert decode.main(["nvimagecodec", str(out), "--only", "engines", "--data", str(data), "--fake"]) == 2


def test_workers_are_measured_by_regions_and_whole(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = measured("cpu", data, monkeypatch)
    found = json.loads((out / "decode-cpu.result.json").read_text())["cpu"]
    assert list(found) == ["2 cores", "2 cores, whole"]
    assert "simplejpeg" in found["2 cores, whole"]["decoder"]
    assert all(row["images_per_s"] > 0 for row in found.values())


def test_what_fails_leaves_the_rest(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> Any:
        def make(backend: str, fancy: bool) -> Fake:
            if backend == "gpu":
                raise RuntimeError("no such backend")
            return Fake()

        return make, {"kernel": FakeFinisher()}

    monkeypatch.setattr(decode, "opened", opened)
    found = json.loads((measured("nvimagecodec", data, monkeypatch) / "private-decode.json").read_text())
    assert found["errors"] == {"gpu": "RuntimeError: no such backend"}
    assert [name.partition(",")[0] for name in found["alone"]] == ["engines"]


def test_without_images_a_step_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode.main(["cpu", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().out == "there are no JPEGs\n"


def test_parts_are_taken_once(tmp_path: Path) -> None:
    one, other = beside.Claims(tmp_path / "claims"), beside.Claims(tmp_path / "claims")
    one.left(-1)
    assert [one.take(4), other.take(1)] == [4, 1]
    one.left(6)
    assert [one.take(4), other.take(1), one.take(4), other.take(1)] == [4, 1, 1, 0]
    one.close()
    other.close()


def test_a_rate_counts_from_one_word_to_another() -> None:
    other = beside.Other.__new__(beside.Other)
    other.said = [(1.0, 32), (2.0, 32), (3.0, 64), (4.0, 32), (9.0, 32)]
    assert other.rate(2.5, 5.0) == 48.0
    assert other.done_since(2.5) == 128


def test_processors_come_by_whole_cores() -> None:
    every = beside.cpus(1 << 10)
    assert sorted(every) == sorted(beside.ALLOWED)
    assert beside.cpus(1) == every[:1]
    assert beside.cpus(1, last=True) == every[-1:]


def test_images_that_a_decoder_refuses_are_not_counted() -> None:
    class Refusing(Fake):
        def decode(self, encoded: Any) -> list[Frame | None]:
            return [None if each == jpegs[0] else super(Refusing, self).decode([each])[0] for each in encoded]

    jpegs = pictures(3)
    side = GpuSide(Refusing(), FakeFinisher(), jpegs, 5)
    assert (side.refused, side(), side.failed) == (1, 5, 0)
    told = pixels(Refusing(), jpegs)
    assert told["444"] == {"images": 2, "failed": 1, "mean": 0.0, "p99.9": 0, "max": 0}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("planar", [False, True])
def test_the_kernel_makes_what_the_workers_make(tmp_path: Path, planar: bool) -> None:
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(ON_A_CPU % KERNEL)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    images = [simplejpeg.decode_jpeg(jpeg, "RGB") for jpeg in pictures(8, 1200)]
    laid = [np.ascontiguousarray(image.transpose(2, 0, 1)) if planar else image for image in images]
    order = (1, 2, 0) if planar else (0, 1, 2)
    frames: list[Frame | None] = [
        Frame(to.ctypes.data, *image.shape[:2], tuple(to.strides[axis] for axis in order), to)  # type: ignore[arg-type]
        for image, to in zip(images, laid, strict=True)
    ]
    drawn = boxes(frames, 1)
    at = np.array([frame.address for frame in frames if frame], np.uint64)
    how = np.array([(*frame.strides, *box) for frame, box in zip(frames, drawn, strict=True) if frame], np.int32)
    out = np.zeros((8, SIDE, SIDE, 3), np.uint8)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (at, how, out)]
    ctypes.CDLL(str(library)).run(*pointers, SIDE, 8)
    for image, made, (top, left, height, width, mirrored) in zip(images, out, drawn, strict=True):
        expected = np.empty((SIDE, SIDE, 3), np.uint8)
        draws = np.ones(64) - mirrored
        AUGMENTATION.finish(image[top : top + height, left : left + width], draws, expected)
        assert np.abs(expected.astype(int) - made).max() <= 1
