"""Pools of texts hold what they say, from files as the real ones are."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PENSTOCK_TEXTS", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "selection"))
    for split, count in (("train", 1700), ("val", 5), ("test", 6)):
        lines = [f"tweet {letters(i)} of {split}, it's word{i % 7} word{i % 11}" for i in range(count)]
        (tmp_path / f"tweet-emotion-{split}-text.txt").write_text("\n".join(lines) + "\n")
        labels = [str(i % 4) for i in range(count)]
        (tmp_path / f"tweet-emotion-{split}-labels.txt").write_text("\n".join(labels) + "\n")
    with (tmp_path / "truthfulqa.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Question", "Best Answer"])
        writer.writerows([f"Is {i} true?", f"Yes, {i} is"] for i in range(500))
    asked = [
        {"question": f"What is {i} + 1?", "answer": f"#### {i + 1}" + " long" * 100 * (i == 0)}
        for i in range(3150)
    ]
    (tmp_path / "gsm8k-train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    import texts

    yield texts
    del sys.modules["texts"]


def test_near_duplicates_are_tweets_with_their_words_in_another_order(texts: Any) -> None:
    pool = texts.tweets(3)
    assert (len(pool.train), len(pool.validation), len(pool.test)) == (3200, 5, 6)
    words = np.sort(pool.train.tokens.numpy(), axis=1)
    known = [(*row, label) for row, label in zip(words.tolist(), pool.train.labels.tolist(), strict=True)]
    assert set(known[1600:]) <= set(known[:1600]) and 35 < len(set(known[1600:])) <= 40
    assert len({tuple(row) for row in pool.train.tokens.tolist()[1600:]}) > 500


def test_labels_of_questions_are_the_answers_next_bytes(texts: Any) -> None:
    pool = texts.questions(3)
    assert (len(pool.train), len(pool.validation), len(pool.test)) == (3500, 100, 50)
    for tokens, labels in zip(pool.train.tokens.numpy(), pool.train.labels.numpy(), strict=True):
        question, _, answer = tokens.astype(np.uint8).tobytes().rstrip(b"\0").partition(b"\nA: ")
        said = labels[labels != -100].astype(np.uint8).tobytes()
        place = len(question) + 3
        assert labels[:place].tolist() == [-100] * place
        assert said.startswith(answer) and len(said) - len(answer) == (b"long" in answer)
    wanted = [row.astype(np.uint8).tobytes().startswith(b"Is ") for row in pool.train.tokens.numpy()]
    assert sum(wanted) == 350 and 0 < sum(wanted[:500]) < 150
