"""LESS's own case: adapters by peft in causal language models of Hugging Face's, scored from checkpoints."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.frameworks.groups import FOLDER, PYTHON, environment_in
from tests.frameworks.pages import code_of


def ran(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PYTHON, *words], cwd=folder, env=environment_in(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


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
