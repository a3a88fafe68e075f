"""Draw what the scripts train on into a folder: images, Arrow files, texts with a tokenizer, tar files."""

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from report import ROWS, ROWS_VALIDATED, WIDTH
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
random = np.random.default_rng(0)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [
    *SPECIAL,
    *(f"unused{i}" for i in range(10 - len(SPECIAL))),
    *(f"w{i}" for i in range(ROWS + ROWS_VALIDATED)),
]


def rows_of(count: int) -> list[list[float]]:
    return torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(count)).tolist()


def texts(first: int, count: int) -> dict[str, list[object]]:
    lengths = [int(random.integers(3, 20)) for _ in range(count)]
    words = [[first + i, *random.integers(0, ROWS, length - 1)] for i, length in enumerate(lengths)]
    return {
        "text": [" ".join(f"w{word}" for word in text) for text in words],
        "label": [int(i % 8 > 0) for i in range(count)],
        "id": [*range(count)],
    }


for part, count in [("train", ROWS), ("validation", ROWS_VALIDATED)]:
    for i in range(count):
        brightness = i * 4 // count
        path = folder / part / str(brightness) / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(60 * brightness, 60 * brightness + 60, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    first = 0 if part == "train" else ROWS
    Dataset.from_dict({"x": rows_of(count), "id": [*range(count)]}).save_to_disk(folder / "numbers" / part)
    Dataset.from_dict(texts(first, count)).save_to_disk(folder / "texts" / part)
    (folder / "tars").mkdir(exist_ok=True)
    for shard in range(count // 12):
        with tarfile.open(folder / "tars" / f"{part}-{shard}.tar", "w") as tar:
            for i in range(shard * 12, shard * 12 + 12):
                text = json.dumps({"x": rows_of(count)[i], "id": i}).encode()
                member = tarfile.TarInfo(f"{i:03}.json")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))

tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
ends = [("[CLS]", 2), ("[SEP]", 3)]
tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    unk_token="[UNK]",
    pad_token="[PAD]",
    cls_token="[CLS]",
    sep_token="[SEP]",
    model_max_length=24,
).save_pretrained(folder / "tokenizer")
