"""Selections in other frameworks: scores of adapters, and samplers that go on exactly and are dealt to ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frameworks.processes import FOLDER, Warm, code_of


def test_scores_of_adapters_are_those_of_loops_over_the_model_s_own_loss(warm: Warm, tmp_path: Path) -> None:
    models = json.loads(warm.printed(tmp_path, FOLDER / "score_lora.py", tmp_path, "llama", "gpt2")[-1])
    assert len(models) == 2
    for found in models.values():
        assert max(found["off"]) < 1e-4
        assert "does not fit the model PeftModelForCausalLM: Missing key(s)" in found["refused"]
        assert found["differ"] == [20, 20]
        off, left_out = found["whole"]
        assert off < 1e-5 and left_out == []


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_the_page_s_script_finds_the_texts_that_are_wanted(model: str, warm: Warm, tmp_path: Path) -> None:
    [script] = code_of("how-to/select-texts.md")
    (tmp_path / "page.py").write_text(script)
    run = warm.start(tmp_path, tmp_path / "page.py", "--model", model)
    part, _, said = run.ended().splitlines()[-1].partition("%")
    assert "less compares 4,096 of 4,096 parameters\n" in run.errors
    assert said == " of the choice counts up, of the pool 20%" and int(part) > 40


def test_an_epoch_goes_on_behind_the_batch_that_was_handed_over(warm: Warm, tmp_path: Path):
    """Of a fixed selection and of one by epoch, with and without workers, in the first epoch and at its end."""
    lines = warm.printed(tmp_path, FOLDER / "sampler_in_torchdata.py")
    assert len(lines) == 2 * 2 * 2 * 2
    for seen, whole in zip(lines[::2], lines[1::2], strict=True):
        assert len(whole.split()) == 150
        assert seen == whole


def test_accelerate_deals_the_selected_samples_to_its_ranks(warm: Warm, tmp_path: Path) -> None:
    lines = [line.split() for line in warm.printed(tmp_path, FOLDER / "sampler_in_accelerate.py", ranks=2)]
    for epoch in ("0", "1"):
        given = [line[2:] for line in lines if line[:2] == ["ids", epoch]]
        assert [len(rank) for rank in given] == [20, 20]
        assert sorted(int(id) for rank in given for id in rank) == [*range(40, 80)]
