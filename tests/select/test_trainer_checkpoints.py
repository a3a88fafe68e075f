"""What Hugging Face's Trainer wrote: two unnamed groups of parameters, and a learning rate that ended at 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers")

from penstock.errors import BadSetting  # noqa: E402
from penstock.select.training import read_checkpoint  # noqa: E402


def made() -> Any:
    torch.manual_seed(0)
    settings = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, bos_token_id=1, eos_token_id=1))


def trainer(model: Any, folder: Path, **settings: Any) -> Any:
    texts = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
    options = {"per_device_train_batch_size": 8, "report_to": "none", "use_cpu": True, "learning_rate": 1e-2}
    arguments = transformers.TrainingArguments(str(folder), weight_decay=0.1, **options, **settings)
    return transformers.Trainer(model, arguments, train_dataset=texts)


@pytest.mark.parametrize(("schedule", "rates"), [("linear", [5e-3, 2.5e-3]), ("constant", [1e-2, 1e-2])])
def test_each_state_is_that_of_its_parameter_and_counts_by_a_rate(
    tmp_path: Path, schedule: str, rates: list[float]
):
    trainer(made(), tmp_path, num_train_epochs=2, save_strategy="epoch", lr_scheduler_type=schedule).train()
    for steps, rate in zip((2, 4), rates, strict=True):
        folder, model = tmp_path / f"checkpoint-{steps}", made()
        found = read_checkpoint(folder, model)
        assert found.learning_rate == pytest.approx(rate)
        its = trainer(model, tmp_path / "its").create_optimizer()
        its.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        for name, parameter in model.named_parameters():
            assert torch.equal(its.state[parameter]["exp_avg_sq"], found.moments[name].square)
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    if schedule == "linear":
        with pytest.raises(BadSetting, match="was saved with a learning rate of 0"):
            read_checkpoint(tmp_path / "checkpoint-4", made())
