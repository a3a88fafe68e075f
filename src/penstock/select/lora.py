"""Low-rank adapters (LoRA) on linear layers, so that little is trained and little is compared."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import torch
from torch import Tensor, nn

from penstock.basics.terminal import say
from penstock.errors import BadSetting

_MANY = 5


class LowRank(nn.Module):
    """A linear layer that is frozen, and a trained one of low rank beside it.

    Source: Hu et al., LoRA (2106.09685): the second matrix begins at 0.

    Args:
        frozen: The layer.
        rank: Of what is trained.
    """

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False, device=frozen.weight.device)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, device=frozen.weight.device)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what both give together."""
        return self.frozen(inputs) + self.up(self.down(inputs))


def adapted(model: nn.Module, rank: int) -> nn.Module:
    """Freeze a model, and put an adapter beside each linear layer; change it in place, and say which get none.

    Raises:
        BadSetting: a layer of it can have none.
    """
    model.requires_grad_(False)
    without = [
        name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear | nn.Embedding)
        and any(each.dim() > 1 for each in module.parameters(False))
    ]
    if without:
        more = f" and {len(without) - _MANY} more" * (len(without) > _MANY)
        say(f"lora_rank: no adapter beside {', '.join(without[:_MANY])}{more}; make_model may give peft's")
    for module in list(model.modules()):
        if isinstance(module, nn.TransformerEncoderLayer):
            raise BadSetting(
                "lora_rank: nn.TransformerEncoderLayer uses weights of its linear layers without calling these, "
                "so that no adapter can stand beside them: use layers of your own, or leave lora_rank out"
            )
        if isinstance(module, nn.MultiheadAttention):
            continue  # as above
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, LowRank):
                setattr(module, name, LowRank(child, rank))
    return model
