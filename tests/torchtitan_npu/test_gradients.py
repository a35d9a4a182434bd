"""A parameter that is not trained stops the run: torch_npu's inference operators drop gradients with a warning."""

import pytest
import torch
import torch_npu
from torch import nn

from torchtitan_npu import gradients
from torchtitan_npu.errors import UserError

HEADS, SIZE = 2, 16


class Attention(nn.Module):
    def __init__(self, for_training: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False)
        self.for_training = for_training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.for_training:
            mixed = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BSH")[0]
        else:
            mixed = torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=HEADS, input_layout="BSH")
        return self.out(mixed)


def trained(for_training: bool) -> Attention:
    torch.manual_seed(0)
    model = Attention(for_training).to("npu", torch.float16)
    model(torch.randn(1, 8, HEADS * SIZE, device="npu", dtype=torch.float16)).float().sum().backward()
    return model


def test_inference_attention_in_a_model_that_trains_is_an_error() -> None:
    with pytest.raises(UserError, match=r"1 trainable parameters got no gradient: qkv\.weight;"):
        gradients.check([trained(for_training=False)])


def test_training_attention_gives_every_parameter_a_gradient() -> None:
    gradients.check([trained(for_training=True)])


def test_frozen_parameters_need_no_gradient() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    gradients.check([model])
