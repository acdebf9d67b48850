"""Reorder the weights of linear layers once, as products in bfloat16 on a CPU read them.

oneDNN reorders plain weights in every product, which takes as long as a product with one row, and a third of one with
16. The operators are those that torch's compiler uses. Results are the same, bit for bit.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

ROWS = 16
"""Rows that the order is chosen for; products with other numbers of rows are correct and nearly as fast."""


def can_reorder(model: PreTrainedModel) -> bool:
    """Return whether the model's products are of the kind that reordering helps, and this torch can do it."""
    operators = torch.ops.mkldnn
    known = all(hasattr(operators, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    kind = model.device.type == "cpu" and model.dtype == torch.bfloat16
    return kind and known and torch.backends.mkldnn.is_available() and operators._is_mkldnn_bf16_supported()


def reorder(model: PreTrainedModel) -> PreTrainedModel:
    """Replace all linear layers of a frozen model in bfloat16 by reordered ones, if possible; returns the model.

    It can load the weights of a plain model, in any type.
    """
    if can_reorder(model):
        for name, module in list(model.named_modules()):
            if type(module) is torch.nn.Linear:
                model.set_submodule(name, ReorderedLinear(module))
    return model


class ReorderedLinear(torch.nn.Module):
    """A linear layer without gradients whose weights only its own product can read."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self._set(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def _set(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.reordered = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16).contiguous(), ROWS)
        self.bias = None if bias is None else bias.to(torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply, `[..., inputs]` to `[..., outputs]`."""
        return torch.ops.mkldnn._linear_pointwise(rows, self.reordered, self.bias, "none", [], "")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *_: Any, **__: Any) -> None:
        self._set(state_dict[prefix + "weight"], state_dict.get(prefix + "bias"))
