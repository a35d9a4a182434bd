"""Convolutions that ATen has under other arguments."""

import torch

from cann_emulator.kernels.precision import deliver, wide_all
from cann_emulator.kernels.registry import kernel


@kernel("aclnnConvDepthwise2d")
def conv_depthwise2d(x, weight, kernel_size, bias, stride, padding, dilation, out, cube_math_type):
    x, weight, bias = wide_all(x, weight, bias)
    deliver(out, torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[-3]))
