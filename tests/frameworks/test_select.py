"""Selections in other frameworks: scores of adapters, and samplers that go on exactly and are dealt to ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frameworks.groups import FOLDER, code_of, ran


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_scores_of_adapters_are_those_of_loops_over_the_model_s_own_loss(model: str, tmp_path: Path) -> None:
    found = json.loads(ran(tmp_path, FOLDER / "score_lora.py", model, tmp_path).stdout)
    assert max(found["off"]) < 1e-4
    assert "does not fit the model PeftModelForCausalLM: Missing key(s)" in found["refused"]
    assert found["differ"] == [20, 20]
    off, left_out = found["whole"]
    assert off < 1e-5 and left_out == []


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_the_page_s_script_finds_the_texts_that_are_wanted(model: str, tmp_path: Path) -> None:
    [script] = code_of("how-to/select-texts.md")
    (tmp_path / "page.py").write_text(script)
    done = ran(tmp_path, "page.py", "--model", model)
    assert "less compares 4,096 of 4,096 parameters\n" in done.stderr
    part, _, said = done.stdout.splitlines()[-1].partition("%")
    assert said == " of the choice counts up, of the pool 20%" and int(part) > 40


def lines_of(folder: Path, *words: str) -> list[list[str]]:
    return [line.split() for line in ran(folder, *words).stdout.splitlines()]


@pytest.mark.parametrize("kind", ["fixed", "policy"])
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("batches", ["3", "13"])
def test_an_epoch_goes_on_behind_the_batch_that_was_handed_over(kind, workers, batches, tmp_path):
    seen, whole = lines_of(tmp_path, str(FOLDER / "sampler_in_torchdata.py"), kind, workers, batches)
    assert len(whole) == 150
    assert seen == whole


def test_accelerate_deals_the_selected_samples_to_its_ranks(tmp_path: Path) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    lines = lines_of(tmp_path, *ranks, str(FOLDER / "sampler_in_accelerate.py"))
    for epoch in ("0", "1"):
        given = [line[2:] for line in lines if line[:2] == ["ids", epoch]]
        assert [len(rank) for rank in given] == [20, 20]
        assert sorted(int(id) for rank in given for id in rank) == [*range(40, 80)]
