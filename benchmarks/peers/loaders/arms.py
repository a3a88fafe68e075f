"""A peer's loader of images, run by itself in an environment of its own; it prints one line of JSON.

python arms.py LOADER FOLDER SIZE BATCH_SIZE WORKERS SECONDS

It makes random crops (RandomResizedCrop) of uint8, half of them mirrored, in a new random order each epoch, as the
loaders of ``penstock bench load`` do, and one process takes its batches.
"""

# The loaders' packages are there only where they are measured.
# pyright: basic, reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".jpg", ".jpeg")
WARM_UP_S = 2.0


class LoadJob(NamedTuple):
    """What to load, and how."""

    paths: list[str]
    size: int
    batch_size: int
    workers: int


def tf_data(job: LoadJob) -> Iterator[int]:
    """tf.data, with the decoder that decodes only a window of the image."""
    import tensorflow as tf

    def load(path: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(data)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], extent[:2]], 0)
        pixels = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        pixels = tf.image.random_flip_left_right(tf.image.resize(pixels, [job.size, job.size]))
        return tf.cast(tf.round(pixels), tf.uint8)

    files = tf.data.Dataset.from_tensor_slices(job.paths).shuffle(len(job.paths)).repeat()
    files = files.map(load, num_parallel_calls=job.workers, deterministic=False).batch(job.batch_size)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job.workers
    for batch in files.prefetch(2).with_options(options):
        yield int(batch.shape[0])


def dali(job: LoadJob) -> Iterator[int]:
    """NVIDIA DALI on the CPU, with the decoder that decodes only a window of the image."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=job.batch_size, num_threads=job.workers, device_id=None)
    def pipeline() -> Any:
        files, _ = fn.readers.file(files=job.paths, random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(
            files, device="cpu", output_type=types.RGB, random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3)
        )
        images = fn.resize(images, size=(job.size, job.size), antialias=False, interp_type=types.INTERP_LINEAR)
        return fn.flip(images, horizontal=fn.random.coin_flip())

    pipe = pipeline()
    pipe.build()
    while True:
        (batch,) = pipe.run()
        yield len(batch)


def spdl(job: LoadJob) -> Iterator[int]:
    """Meta's SPDL, which decodes by FFmpeg in threads."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def paths() -> Iterator[list[str]]:
        while True:
            order = random.sample(job.paths, len(job.paths))
            yield from (order[i : i + job.batch_size] for i in range(0, len(order), job.batch_size))

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        scale = f"scale={job.size}:{job.size}:flags=bilinear,format=pix_fmts=rgb24"
        width, height = (math.sqrt(random.uniform(0.08, 1.0)) for _ in range(2))
        flip = ",hflip" if random.random() < 0.5 else ""
        return spdl.io.decode_packets(packets, filter_desc=f"crop=w=iw*{width}:h=ih*{height},{scale}{flip}")

    def together(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    builder = PipelineBuilder().add_source(path for batch in paths() for path in batch)
    builder = builder.pipe(decode, concurrency=job.workers).aggregate(job.batch_size).pipe(together).add_sink(2)
    pipeline = builder.build(num_threads=job.workers)
    with pipeline.auto_stop():
        for batch in pipeline:
            yield len(batch)


LOADERS = {"tf.data": tf_data, "dali": dali, "spdl": spdl}


def images_in(folder: str) -> list[str]:
    """Paths of the JPEGs in a folder and below it."""
    walked = os.walk(folder, followlinks=True)
    return sorted(
        os.path.join(root, name) for root, _, names in walked for name in names if name.lower().endswith(SUFFIXES)
    )


def cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants that run, in seconds."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry)] = int(fields[1])
        used[int(entry)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_ours(each: int) -> bool:
        return each == pid or (each in parents and is_ours(parents[each]))

    return sum(seconds for each, seconds in used.items() if is_ours(each))


if __name__ == "__main__":
    _, loader, folder, size, batch_size, workers, seconds = sys.argv
    batches = LOADERS[loader](LoadJob(images_in(folder), int(size), int(batch_size), int(workers)))
    began = time.perf_counter()
    next(batches)
    first_s = time.perf_counter() - began
    while time.perf_counter() - began < first_s + WARM_UP_S:
        next(batches)
    used, began, samples = cpu_s(os.getpid()), time.perf_counter(), 0  # looking takes long on a busy machine
    while (took := time.perf_counter() - began) < float(seconds):
        samples += next(batches)
    cpu_ms = 1000 * (cpu_s(os.getpid()) - used) / samples
    print(
        json.dumps({"samples_per_s": samples / took, "cpu_ms_per_sample": cpu_ms, "first_batch_s": first_s}),
        flush=True,
    )
    os._exit(0)  # some loaders take long to end, or hang
