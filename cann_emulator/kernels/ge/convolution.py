"""Convolutions, their gradients, and pooling."""

import math

import torch
import torch.nn.functional as F

from .registry import Node, kernel

# Where the channels of a layout go: orders of dimensions that give PyTorch's (N, C, then space).
_FIRST = {"NCHW": None, "NCDHW": None, "NHWC": (0, 3, 1, 2), "NDHWC": (0, 4, 1, 2, 3), "HWCN": (3, 2, 0, 1),
          "DHWCN": (4, 3, 0, 1, 2)}  # fmt: skip
_FILTER = {"NCHW": "NCHW", "NCDHW": "NCDHW", "NHWC": "HWCN", "NDHWC": "DHWCN"}


def _channels_first(tensor: torch.Tensor, order: str) -> torch.Tensor:
    permutation = _FIRST[order]
    return tensor if permutation is None else tensor.permute(permutation)


def _spatial(values: list[int], order: str) -> list[int]:
    letters = [letter for letter in "DHW" if letter in order]
    if len(values) == len(order):
        return [values[order.index(letter)] for letter in letters]
    return list(values) if len(values) == len(letters) else list(values) * len(letters)


class _Window:
    """The attributes of a convolution, in PyTorch's terms."""

    def __init__(self, n: Node) -> None:
        self.order = n.attr("data_format", "NHWC" if "2D" in n.type else "NDHWC")
        self.strides = _spatial(n.strides, self.order)
        self.dilations = _spatial(n.attr("dilations") or [1], self.order)
        self.groups = n.attr("groups", 1)
        pads = n.attr("pads") or [0] * (2 * len(self.strides))
        self.before, self.after = pads[0::2], pads[1::2]

    @property
    def even(self) -> bool:
        """Whether both sides have the same padding, of 0 or more."""
        return self.before == self.after and min(self.before) >= 0

    def padding(self) -> list[int]:
        """What torch.nn.functional.pad takes."""
        return [p for pair in zip(reversed(self.before), reversed(self.after), strict=True) for p in pair]


@kernel("Conv2D", "Conv2DV2", "Conv3D", "Conv3DV2")
def conv(n: Node) -> None:
    """A convolution (a correlation, as in PyTorch); summed in fp32 and rounded once."""
    w = _Window(n)
    if n.attr("pad_mode", "SPECIFIC") != "SPECIFIC":
        n.refuse(f"pad_mode {n.pad_mode}: SPECIFIC is supported")
    x, y = _channels_first(n.x, w.order), _channels_first(n.y, w.order)
    weight = _channels_first(n.filter, _FILTER[w.order])
    bias = n.inputs.get("bias")
    if y.numel() and x.numel() and w.even and x.element_size() >= 4 and x.is_floating_point():
        n.call("convolution", x, weight, bias, w.strides, w.before, w.dilations, False, [0] * len(w.strides), w.groups,
               results=(y,))  # fmt: skip
    else:
        n.run(_conv, x, weight, bias, y, w)


def _wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or tensor.dtype == torch.float64:
        return tensor
    return tensor.float()


def _conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, w: _Window) -> None:
    if not y.numel():
        return
    if not x.numel() or not weight.numel():
        y.zero_()
        return
    padded = F.pad(_wide(x), w.padding())
    zeros = [0] * len(w.strides)
    y.copy_(
        torch.convolution(padded, _wide(weight), _wide(bias), w.strides, zeros, w.dilations, False, zeros, w.groups)
    )


@kernel("Conv2DBackpropInput", "Conv2DBackpropInputD", "Conv3DBackpropInput", "Conv2DTranspose", "Conv2DTransposeD",
        "Conv3DTranspose")  # fmt: skip
def conv_input_grad(n: Node) -> None:
    """The gradient of a convolution with respect to its input; a transposed convolution is the same."""
    w = _Window(n)
    grad = n.inputs["x" if "x" in n.inputs else "out_backprop"]
    n.run(_conv_input_grad, _channels_first(grad, w.order), _channels_first(n.filter, _FILTER[w.order]),
          n.inputs.get("bias"), _channels_first(n.out, w.order), w)  # fmt: skip


def _conv_input_grad(
    grad: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, w: _Window
) -> None:
    padded = [size + a + b for size, a, b in zip(y.shape[2:], w.before, w.after, strict=True)]
    whole = torch.empty([*y.shape[:2], *padded])
    zeros = [0] * len(w.strides)
    result = torch.ops.aten.convolution_backward(
        grad.float(),
        whole,
        weight.float(),
        None,
        w.strides,
        zeros,
        w.dilations,
        False,
        zeros,
        w.groups,
        [True, False, False],
    )[0]
    for axis, (size, before) in enumerate(zip(y.shape[2:], w.before, strict=True), 2):
        result = result.narrow(axis, before, size)
    y.copy_(result if bias is None else result + bias.float().reshape([-1] + [1] * (y.dim() - 2)))


@kernel("Conv2DBackpropFilter", "Conv2DBackpropFilterD", "Conv3DBackpropFilter")
def conv_filter_grad(n: Node) -> None:
    """The gradient of a convolution with respect to its filter."""
    w = _Window(n)
    n.run(_conv_filter_grad, _channels_first(n.x, w.order), _channels_first(n.out_backprop, w.order),
          _channels_first(n.out, _FILTER[w.order]), w)  # fmt: skip


def _conv_filter_grad(x: torch.Tensor, grad: torch.Tensor, y: torch.Tensor, w: _Window) -> None:
    zeros = [0] * len(w.strides)
    y.copy_(
        torch.ops.aten.convolution_backward(
            grad.float(), F.pad(x.float(), w.padding()), torch.empty(y.shape), None, w.strides, zeros, w.dilations,
            False, zeros, w.groups, [False, True, False],
        )[1]
    )  # fmt: skip


def _pool_window(n: Node) -> tuple[str, list[int], list[int], list[int]]:
    order = n.attr("data_format", "NDHWC" if n.type.endswith("3D") else "NHWC")
    window, strides = _spatial(n.ksize, order), _spatial(n.strides, order)
    size = [_channels_first(n.x, order).shape[2 + i] for i in range(len(window))]
    if n.attr("global_pooling", False):
        window = strides = size
    mode = n.attr("padding_mode") or n.attr("padding") or "CALCULATED"
    pads = list(n.attr("pads") or [0] * (2 * len(window)))
    if mode == "VALID":
        pads = [0] * (2 * len(window))
    elif mode == "SAME":
        pads = []
        for have, size_, step in zip(size, window, strides, strict=True):
            whole = max(0, (-(-have // step) - 1) * step + size_ - have)
            pads += [whole // 2, whole - whole // 2]
    return order, window, strides, pads


@kernel("MaxPoolV3", "MaxPool3D", "MaxPool", "AvgPoolV2", "AvgPool3D", "AvgPool")
def pool(n: Node) -> None:
    """Maxima or means of windows."""
    order, window, strides, pads = _pool_window(n)
    mean = n.type.startswith("Avg")
    n.run(_pool, _channels_first(n.x, order), _channels_first(n.y, order), window, strides, pads, mean,
          n.attr("exclusive", True) if mean else False)  # fmt: skip


def _windows(x: torch.Tensor, window: list[int], strides: list[int], sizes: list[int]) -> torch.Tensor:
    """[N, C, ...sizes, elements of a window]."""
    for axis, (size, step) in enumerate(zip(window, strides, strict=True), 2):
        x = x.unfold(axis, size, step)
    return x[(slice(None), slice(None), *[slice(0, size) for size in sizes])].flatten(2 + len(window))


def _pool(
    x: torch.Tensor,
    y: torch.Tensor,
    window: list[int],
    strides: list[int],
    pads: list[int],
    mean: bool,
    exclusive: bool,
) -> None:
    sizes = list(y.shape[2:])
    value = x.double() if mean else x
    around = []
    for i in reversed(range(len(window))):
        # Windows of ceil_mode may reach past the padding.
        reach = (sizes[i] - 1) * strides[i] + window[i] - x.shape[2 + i] - pads[2 * i]
        around += [pads[2 * i], max(pads[2 * i + 1], reach)]
    lowest = 0 if mean else -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    parts = _windows(F.pad(value, around, value=lowest), window, strides, sizes)
    if not mean:
        y.copy_(parts.amax(-1))
        return
    total = parts.sum(-1)
    if exclusive:
        count = _windows(F.pad(torch.ones_like(value), around), window, strides, sizes).sum(-1)
    else:
        count = torch.tensor(math.prod(window))
    y.copy_(total / count)
