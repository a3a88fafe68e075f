"""What the default loss takes: logits and classes, and outputs and labels of Hugging Face's; else it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.select.tasks import SAMPLES, Images, Language, Texts, images, small
from torch import nn

from penstock.errors import BadSetting
from penstock.select.scoring import score
from penstock.select.task import Task, cross_entropy


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (lambda label: label / 2, r"outputs \(\d+, 3\) and labels \(\d+,\), torch.float64: cross-entropy needs"),
        (lambda label: [1, 0, label], r"loss: outputs \(\d+, 3\) and labels \(\d+, 3\), torch.int64"),
        (lambda label: label + 1, "labels: there is class 3, and the model has 3, from 0 on"),
        (lambda label: label - 1, "labels: there is class -1, and the model has 3"),
    ],
)
@pytest.mark.parametrize("method", ["less", "el2n", "sketch", "rds"])
def test_targets_that_the_default_loss_cannot_take_are_told_in_words(method: str, label: Any, said: str) -> None:
    labelled = [(image, torch.tensor(label(its))) for image, its in map(Images().__getitem__, range(SAMPLES))]
    labelled = [(image, each.double() if each.is_floating_point() else each) for image, each in labelled]
    with pytest.raises(BadSetting, match=said):
        score(images(data=labelled, validation=labelled[:9], make_proxy=small), method)


def test_outputs_that_are_no_logits_are_told_in_words_and_true_and_false_are_classes() -> None:
    with pytest.raises(BadSetting, match="loss: outputs tuple and labels"):
        cross_entropy((torch.ones(2, 3),), torch.zeros(2))
    logits = torch.randn(4, 2)
    is_late = torch.arange(4) > 1
    assert torch.equal(cross_entropy(logits, is_late), cross_entropy(logits, is_late.int()))


class ACausalLMOutput:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Causal(Language):
    """As models of Hugging Face's: entries of a batch are arguments, and what it gives holds logits."""

    def __init__(self, gives: Any = ACausalLMOutput) -> None:
        super().__init__()
        self.gives = gives

    def forward(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.gives(super().forward(input_ids * attention_mask))


class Padded(Texts):
    """Texts as Hugging Face's tokenizers and collators give them: labels are the words, -100 where they end."""

    def __getitem__(self, id: int) -> Any:
        words, _ = super().__getitem__(id)
        mask = (torch.arange(6) < 3 + id % 4).long()
        return {"input_ids": words, "attention_mask": mask, "labels": torch.where(mask > 0, words, -100)}


class Shifted(Padded):
    """The same, as plain models take them: the label of each word is the next one."""

    def __getitem__(self, id: int) -> Any:
        found = super().__getitem__(id)
        labels = torch.cat([found.pop("labels")[1:], torch.tensor([-100])])
        return found, labels


@pytest.mark.parametrize("method", ["less", "rds"])
def test_batches_outputs_and_labels_of_hugging_face_s_causal_models_are_understood(method: str) -> None:
    def plain() -> nn.Module:
        return Causal(lambda logits: logits)

    both = [
        Task(data=kind(), validation=kind(9, seed=1), make_model=make, mask=mask)
        for kind, make, mask in (
            (Padded, Causal, None),
            (Shifted, plain, lambda batch: batch[0]["attention_mask"]),
        )
    ]
    theirs, ours = (score(task, method, epochs=1).values for task in both)
    assert np.unique(theirs).size > 10 and np.array_equal(theirs, ours)


def test_other_outputs_with_logits_are_not_shifted() -> None:
    class TokenClassifierOutput(ACausalLMOutput):
        pass

    logits, labels = torch.randn(4, 5, 3), torch.randint(0, 3, (4, 5))
    assert torch.equal(cross_entropy(TokenClassifierOutput(logits), labels), cross_entropy(logits, labels))
    shifted = cross_entropy(logits[:, :-1], labels[:, 1:])
    torch.testing.assert_close(cross_entropy(ACausalLMOutput(logits), labels), shifted)
