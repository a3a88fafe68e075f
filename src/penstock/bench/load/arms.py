"""One loader of images, run as a process of its own; it prints one line of JSON.

python arms.py ARM FOLDER SIZE BATCH_SIZE WORKERS SECONDS SCRATCH COLUMNS

Every loader makes random crops (RandomResizedCrop) of uint8, half of them mirrored, in a new random order each
epoch, and one process takes its batches. Only Penstock's arm imports Penstock, so that a peer can run in an
environment of its own.
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
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".jpg", ".jpeg")
WARM_UP_S = 2.0


class LoadJob(NamedTuple):
    """What to load: paths of JPEGs, or of tables and which columns; how; and a folder for what a loader writes."""

    folder: str
    paths: list[str]
    size: int
    batch_size: int
    workers: int
    scratch: str
    columns: list[str] | None


def images_in(folder: str) -> list[str]:
    """Paths of the JPEGs in a folder and below it; links are followed, as ImageSource does."""
    walked = os.walk(folder, followlinks=True)
    return sorted(
        os.path.join(root, name) for root, _, names in walked for name in names if name.lower().endswith(SUFFIXES)
    )


def penstock(job: LoadJob) -> Iterator[int]:
    """Penstock's ImageSource, alone."""
    from penstock.sources.images.source import ImageSource

    labels = [0] * len(job.paths)  # some images may lie in folders of classes, and others not
    source = ImageSource(
        job.folder, size=job.size, batch_size=job.batch_size, workers=job.workers, suffixes=SUFFIXES, labels=labels
    )
    while True:
        for images, _ in source:
            yield len(images)


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """As torchvision's RandomResizedCrop: top, left, height and width."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def by_pillow(path: str, size: int) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        rgb = image.convert("RGB")
    top, left, h, w = crop(rgb.height, rgb.width)
    box = (left, top, left + w, top + h)
    pixels = np.array(rgb.resize((size, size), Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def by_simplejpeg(path: str, size: int) -> Any:
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB", strict=False)
    top, left, h, w = crop(*pixels.shape[:2])
    pixels = cv2.resize(pixels[top : top + h, left : left + w], (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(pixels, 1) if random.random() < 0.5 else pixels


def by_torchvision(path: str, size: int) -> Any:
    from torchvision.io import ImageReadMode, decode_image, read_file
    from torchvision.transforms.v2.functional import resized_crop

    pixels = decode_image(read_file(path), ImageReadMode.RGB)
    pixels = resized_crop(pixels, *crop(*pixels.shape[1:]), [size, size], antialias=True)
    return (pixels.flip(2) if random.random() < 0.5 else pixels).numpy()


def data_loader(load: Callable[[str, int], Any]) -> Callable[[LoadJob], Iterator[int]]:
    """Make an arm of torch's DataLoader."""

    def arm(job: LoadJob) -> Iterator[int]:
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Images(Dataset[Any]):
            def __len__(self) -> int:
                return len(job.paths)

            def __getitem__(self, i: int) -> Any:
                return torch.from_numpy(np.ascontiguousarray(load(job.paths[i], job.size)))

        torch.set_num_threads(1)
        loader = DataLoader(
            Images(),
            batch_size=job.batch_size,
            shuffle=True,
            num_workers=job.workers,
            persistent_workers=True,
            worker_init_fn=one_thread,
        )
        while True:
            for batch in loader:
                yield len(batch)

    return arm


def one_thread(_worker: int) -> None:
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(1)


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
            files,
            device="cpu",
            output_type=types.RGB,
            random_area=(0.08, 1.0),
            random_aspect_ratio=(3 / 4, 4 / 3),
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


class Loads(NamedTuple):
    """A loader: its name for people, the modules that it needs, with the decoder last, and what runs it."""

    name: str
    modules: tuple[str, ...]
    run: Callable[[LoadJob], Iterator[int]]


ARMS: dict[str, Loads] = {
    "penstock": Loads("Penstock ImageSource", ("penstock", "simplejpeg", "cv2"), penstock),
    "pillow": Loads("torch DataLoader, Pillow", ("torch", "PIL"), data_loader(by_pillow)),
    "simplejpeg": Loads(
        "torch DataLoader, simplejpeg and OpenCV", ("torch", "cv2", "simplejpeg"), data_loader(by_simplejpeg)
    ),
    "torchvision": Loads("torch DataLoader, torchvision", ("torch", "torchvision"), data_loader(by_torchvision)),
    "tf.data": Loads("tf.data, decode and crop in one", ("tensorflow",), tf_data),
    "dali": Loads("NVIDIA DALI on the CPU", ("nvidia.dali",), dali),
    "spdl": Loads("SPDL", ("spdl.io",), spdl),
}


def decoder(arm: str) -> str:
    """What an arm decodes with, and its version."""
    if arm == "penstock":
        from penstock.sources.images.decoders import decoder as fastest

        return fastest().name
    return version(ARMS[arm].modules[-1])


def version(name: str) -> str:
    """A module, and its version."""
    return f"{name} {getattr(import_module(name), '__version__', '')}".strip()


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


def measure(loads: Loads, find: Callable[[str], list[str]], decoder: Callable[[], str]) -> None:
    """Run the loader that the command line describes, print its figures, and exit."""
    _, folder, size, batch_size, workers, seconds, scratch, columns = sys.argv[1:]
    named = columns.split(",") if columns else None
    batches = loads.run(LoadJob(folder, find(folder), int(size), int(batch_size), int(workers), scratch, named))
    began = time.perf_counter()
    next(batches)
    first_s = time.perf_counter() - began
    while time.perf_counter() - began < first_s + WARM_UP_S:
        next(batches)
    used, began, samples = cpu_s(os.getpid()), time.perf_counter(), 0  # looking takes long on a busy machine
    while (took := time.perf_counter() - began) < float(seconds):
        samples += next(batches)
    used = cpu_s(os.getpid()) - used
    found = {
        "samples_per_s": samples / took,
        "cpu_ms_per_sample": 1000 * used / samples,
        "first_batch_s": first_s,
        "decoder": decoder(),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # some loaders take long to end, or hang


if __name__ == "__main__":
    measure(ARMS[sys.argv[1]], images_in, lambda: decoder(sys.argv[1]))
