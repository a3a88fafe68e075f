"""Data sets and tokenizers of Hugging Face, where they are installed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.fingerprint.comparison import fingerprint_difference
from penstock.fingerprint.objects import fingerprint_of_objects, small_state

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def test_a_tokenizer_that_was_called_is_the_one_that_it_was() -> None:
    words = tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2, "[PAD]": 3}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(words)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    things = {"collate_fn": transformers.DataCollatorWithPadding(fast)}
    before, small = fingerprint_of_objects(things), small_state(things)
    fast(["a b a", "b"], padding=True, truncation=True, max_length=2)
    things["collate_fn"]([{"input_ids": [1, 2, 3]}, {"input_ids": [1]}])
    assert (fingerprint_of_objects(things), small_state(things)) == (before, small)
    fast.add_tokens(["c"])
    assert fingerprint_of_objects(things).digest != before.digest


def test_a_tokenizer_of_the_user_s_own_counts_with_its_truncation() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    before = fingerprint_of_objects({"tokenizer": tokenizer})
    tokenizer.enable_truncation(7)
    assert fingerprint_of_objects({"tokenizer": tokenizer}).digest != before.digest


def test_a_data_set_counts_by_its_own_fingerprint() -> None:
    rows = datasets.Dataset.from_dict({"x": list(range(100))})
    made: list[Any] = [rows, rows.with_format("torch"), rows.shuffle(seed=1), rows.select(range(50))]
    made += [rows.with_transform(lambda batch: batch), rows.with_transform(lambda batch: {"x": batch["x"]})]
    prints = [fingerprint_of_objects({"dataset": one}) for one in made]
    assert len({one.digest for one in prints}) == len(made)
    assert f"dataset._fingerprint is {rows._fingerprint} there" in fingerprint_difference(prints[0], prints[2])


def test_the_epoch_of_an_iterable_data_set_counts_which_decides_its_order() -> None:
    rows = datasets.Dataset.from_dict({"x": list(range(100))}).to_iterable_dataset().shuffle(seed=1)
    before, small = fingerprint_of_objects({"dataset": rows}), small_state({"dataset": rows})
    rows.set_epoch(3)
    assert fingerprint_of_objects({"dataset": rows}).digest != before.digest
    assert small_state({"dataset": rows}) != small
    rows.set_epoch(0)
    assert fingerprint_of_objects({"dataset": rows}).digest == before.digest
