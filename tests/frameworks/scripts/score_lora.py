"""Scores by LESS of a Llama and a GPT-2 with peft's adapters, against loops over Hugging Face's own loss."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from penstock import select
from penstock.errors import BadSetting
from penstock.select.gradients import SampleGradients
from penstock.select.task import cross_entropy

FOLDER, KINDS = Path(sys.argv[1]), sys.argv[2:]
WORDS, RATE, EPOCHS = 30, 0.01, 2


def whole(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "llama":
        layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=16, intermediate_size=24, **layers))
    layers = {"n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=16, **layers))


def make_model(kind: str) -> nn.Module:
    """Adapters beside frozen weights, with dropout, which scoring must not draw."""
    config = {"target_modules": "all-linear", "fan_in_fan_out": kind == "gpt2", "lora_dropout": 0.1}
    return get_peft_model(whole(kind), LoraConfig(task_type="CAUSAL_LM", r=2, **config))


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Texts with padding, and a prompt without labels."""
    draws, found = torch.Generator().manual_seed(seed), list[dict[str, Tensor]]()
    for row in range(count):
        words = torch.randint(0, WORDS, (9,), generator=draws)
        mask = (torch.arange(9) < 4 + row % 6).long()
        labels = torch.where((mask > 0) & (torch.arange(9) > 1), words, -100)
        found.append({"input_ids": words, "attention_mask": mask, "labels": labels})
    return found


def gradient(model: nn.Module, sample: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of the loss that the model itself tells of one sample."""
    model.zero_grad()
    model(**{name: each[None] for name, each in sample.items()}).loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def off_of_whole(kind: str, pool: list[dict[str, Tensor]]) -> tuple[float, list[str]]:
    """How far gradients of all parameters of a model without adapters are from a loop's, and what is left out."""
    model, batch = whole(kind).eval(), default_collate(pool)
    labels = batch.pop("labels")

    def losses() -> Tensor:
        return cross_entropy(model(**batch), labels)

    gradients = SampleGradients(model, losses, len(pool))
    loop = [gradient(model, sample) for sample in pool]
    found = dict[str, list[Tensor]]()
    for each in gradients.by_rows(losses, len(pool)):
        found.setdefault(each.parameter, []).append(each.gradients.clone())
    length = float(torch.stack([each.norm() for one in loop for each in one.values()]).norm())
    off = 0.0
    for name, parts in found.items():
        plain = torch.stack([one[name] for one in loop])
        error = float((torch.cat(parts, 1).view_as(plain) - plain).norm())
        off = max(off, error / (float(plain.norm()) + 0.1 * length))
    return off, gradients.left_out


def found_of(kind: str) -> dict[str, Any]:
    pool, target = texts(20, 1), texts(5, 2)
    model = make_model(kind)
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE)
    expected, files = np.zeros(len(pool)), dict[str, list[Any]](whole=[], adapters=[], fewer=[])
    for epoch in range(EPOCHS):
        model.train()
        for sample in pool:
            optimizer.zero_grad()
            model(**{name: each[None] for name, each in sample.items()}).loss.backward()
            optimizer.step()
        model.eval()
        adapters = get_peft_model_state_dict(model)
        fewer = {name: each for name, each in adapters.items() if "layers.1." not in name and "h.1." not in name}
        for name, state in (("whole", model.state_dict()), ("adapters", adapters), ("fewer", fewer)):
            files[name].append(FOLDER / f"{name}-{epoch}.pt")
            torch.save({"model": state, "optimizer": optimizer.state_dict()}, files[name][-1])
        wanted = sum(torch.cat([each.flatten() for each in gradient(model, one).values()]) for one in target)
        for id, sample in enumerate(pool):
            steps = list[Tensor]()
            for name, each in gradient(model, sample).items():
                state = optimizer.state_dict()["state"][trained.index(name)]
                t = int(state["step"]) + 1
                mean = (0.9 * state["exp_avg"] + 0.1 * each) / (1 - 0.9**t)
                square = (0.999 * state["exp_avg_sq"] + 0.001 * each**2) / (1 - 0.999**t)
                steps.append((mean / (square.sqrt() + 1e-8)).flatten())
            expected[id] += RATE * float(nn.functional.cosine_similarity(torch.cat(steps), wanted, dim=0))

    def task(**changes: Any) -> select.Task:
        return select.Task(data=pool, validation=target, make_model=functools.partial(make_model, kind), **changes)

    def off(**changes: Any) -> float:
        scores = select.score(task(**changes), "less").values[:, 0]
        return float(np.abs(scores - expected).max() / np.abs(expected).max())

    try:
        refused = str(off(checkpoints=files["fewer"]))
    except BadSetting as error:
        refused = str(error)

    trained_here = select.score(task(batch_size=4), "less", warm_up=0.5)
    ranked = select.score(task(checkpoints=files["whole"][-1:]), "rds")
    whole, adapters = files["whole"], files["adapters"]
    found = {"off": [off(checkpoints=whole), off(checkpoints=adapters), off(checkpoints=adapters, batch_size=3)]}
    found |= {"refused": refused, "whole": off_of_whole(kind, pool)}
    found |= {"differ": [len(np.unique(each.values)) for each in (trained_here, ranked)]}
    return found


if __name__ == "__main__":
    print(json.dumps({kind: found_of(kind) for kind in KINDS}))
