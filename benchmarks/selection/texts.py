"""Pools of texts in which there is something to select, and tasks that score them.

``PENSTOCK_TEXTS`` names the folder with ``tweet-emotion-*``, ``truthfulqa.csv`` and ``gsm8k-train.jsonl``. Models
begin from nothing: no trained weights are at hand, so the language model shows that all parts fit, and no more.
"""

from __future__ import annotations

import csv
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock import select

WORDS, VOCABULARY = 32, 8192
BYTES, ANSWER = 192, b"\nA: "
NOTHING = -100
_WORD = re.compile(r"[a-z']+|[^\sa-z]")
Rows = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """Texts to train on, to compare with, to choose methods by (no questions), and to test with."""

    train: Texts
    validation: Texts
    choosing: Texts
    test: Texts


class Texts:
    """Texts as numbers, with labels, as a map-style data set."""

    def __init__(self, tokens: Rows, labels: Rows) -> None:
        self.tokens = torch.from_numpy(tokens)  # shape ``(n, length)``; 0 where a text has ended
        self.labels = torch.from_numpy(labels)  # shape ``(n,)`` or ``(n, length)``; -100 where there is none

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, id: int) -> tuple[Tensor, Tensor]:
        return self.tokens[id], self.labels[id]


def tweets(seed: int) -> Pool:
    """1,600 tweets with one of four emotions, and as many near-duplicates of 40: their words in another order."""
    draws = np.random.default_rng(seed)
    texts, labels = _tweets("train")
    rows, others = np.split(draws.permutation(len(texts)), [1600])
    originals = rows[draws.integers(40, size=1600)]
    kept = [texts[row] for row in rows] + [_reordered(texts[row], draws) for row in originals]
    train = Texts(_words(kept), np.concatenate([labels[rows], labels[originals]]))
    choosing = Texts(_words([texts[row] for row in others]), labels[others])
    validation, test = (Texts(_words(its), labels) for its, labels in (_tweets("val"), _tweets("test")))
    return Pool(train, validation, choosing, test)


def questions(seed: int) -> Pool:
    """350 questions of TruthfulQA among 3,150 of GSM8K, with their answers; TruthfulQA's are wanted."""
    draws = np.random.default_rng(seed)
    folder = Path(os.environ["PENSTOCK_TEXTS"])
    with (folder / "truthfulqa.csv").open(newline="") as file:
        wanted = [(row["Question"], row["Best Answer"]) for row in csv.DictReader(file)]
    with (folder / "gsm8k-train.jsonl").open() as file:
        others = [(row["question"], row["answer"]) for row in map(json.loads, file)]
    wanted, others = ([each[row] for row in draws.permutation(len(each))] for each in (wanted, others))
    asked = wanted[:350] + others[:3150]
    return Pool(
        _asked([asked[row] for row in draws.permutation(len(asked))]),
        _asked(wanted[350:450]),
        _asked([]),
        _asked(wanted[450:]),
    )


POOLS = {"tweets": tweets, "questions": questions}


class Block(nn.Module):
    """Attention and two linear layers, each of which an adapter can stand beside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, *, causal: bool) -> Tensor:
        """Return the next layer's input, shape ``(n, length, width)``."""
        n, length, width = hidden.shape
        parts = self.attend(self.before(hidden)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, is_causal=causal)
        hidden = hidden + self.joined(attended.transpose(1, 2).reshape(n, length, width))
        return hidden + self.narrow(functional.gelu(self.wide(self.between(hidden))))


class Transformer(nn.Module):
    """A small one: of words with a class for each text, or of bytes with the next one for each position."""

    def __init__(self, vocabulary: int, length: int, classes: int, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 32)) for _ in range(2))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape ``(n, classes)``, or ``(n, length, classes)``."""
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, causal=self.causal)
        hidden = self.last(hidden)
        if not self.causal:
            there = (tokens != 0).unsqueeze(2)
            hidden = (hidden * there).sum(1) / there.sum(1).clamp(min=1)
        return self.head(hidden)


def of_words(width: int = 96) -> nn.Module:
    """A classifier of tweets."""
    return Transformer(VOCABULARY, WORDS, 4, width, causal=False)


def of_bytes(width: int = 96) -> nn.Module:
    """A language model."""
    return Transformer(256, BYTES, 256, width, causal=True)


NETWORKS = {"tweets": of_words, "questions": of_bytes}


def bag_of_words(_: nn.Module, batch: Any) -> Tensor:
    """An embedding without a model: how often each word comes, hashed to 512 places, whatever the order."""
    counts = torch.zeros(len(batch[0]), 512)
    counts.scatter_add_(1, batch[0] % 512, (batch[0] != 0).float())
    return functional.normalize(counts, dim=1)


def tweets_task(seed: int = 0) -> select.Task:
    """Emotions of tweets."""
    torch.set_num_threads(1)
    pool = tweets(seed)
    return select.Task(data=pool.train, validation=pool.validation, make_model=of_words, embed=bag_of_words)


def questions_task(seed: int = 0) -> select.Task:
    """Questions and answers."""
    torch.set_num_threads(1)
    pool = questions(seed)
    return select.Task(
        data=pool.train,
        validation=pool.validation,
        make_model=of_bytes,
        make_proxy=lambda: of_bytes(16),
        mask=lambda batch: batch[0] != 0,
        batch_size=32,
    )


def _tweets(split: str) -> tuple[list[str], Rows]:
    folder = Path(os.environ["PENSTOCK_TEXTS"])
    texts, labels = (folder / f"tweet-emotion-{split}-{what}.txt" for what in ("text", "labels"))
    return texts.read_text().splitlines(), np.array(labels.read_text().split(), np.int64)


def _words(texts: list[str]) -> Rows:
    """Return each text's first words, hashed, shape ``(n, WORDS)``."""
    tokens = np.zeros((len(texts), WORDS), np.int64)
    for row, text in enumerate(texts):
        words = _WORD.findall(text.lower())[:WORDS]
        found = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
        tokens[row, : len(found)] = found
    return tokens


def _reordered(text: str, draws: np.random.Generator) -> str:
    words = text.split()
    cut = int(draws.integers(len(words) + 1))
    words = words[cut:] + words[:cut]
    for place in range(len(words) - 1):
        if draws.random() < 0.3:
            words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def _asked(pairs: list[tuple[str, str]]) -> Texts:
    """Return the bytes of questions and answers, labelled with the next byte within the answer."""
    tokens = np.zeros((len(pairs), BYTES), np.int64)
    labels = np.full((len(pairs), BYTES), NOTHING, np.int64)
    for row, (question, answer) in enumerate(pairs):
        begin = question.encode()[: BYTES // 2] + ANSWER
        text = np.frombuffer((begin + answer.encode() + b"\n")[: BYTES + 1], np.uint8)
        tokens[row, : min(len(text), BYTES)] = text[:BYTES]
        labels[row, len(begin) - 1 : len(text) - 1] = text[len(begin) :]
    return Texts(tokens, labels)
