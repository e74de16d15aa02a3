"""Operators with inputs, whose gradients are compared with PyTorch's: one table, by name.

    python -m test.numerics.gradient_cases [PART OF A NAME ...]

compiles all of them, or those whose names contain a part, in f32 and bf16, and says which are wrong.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.frontend.attention import scaled_dot_product_attention
from test.numerics.gradients import calls_of, runs_in_pytorch, wrong, wrong_alone

__all__ = ["CASES", "inputs"]

Case = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its inputs: tensors of whole numbers as they are, of others the shapes."""

EXACTLY = "donot_use_mm_for_euclid_dist"

CONVOLUTIONS = {
    # channels, out, groups, kernel, stride, padding, dilation, extents
    "": (5, 7, 1, 3, 1, 1, 1, (9, 11)),
    "stride": (6, 4, 1, 3, 2, 1, 1, (9, 12)),
    "grouped, dilated": (6, 9, 3, 3, 1, 0, 2, (9, 11)),
    "depthwise": (5, 5, 5, 3, 2, 1, 1, (9, 8)),
    "depthwise, two each": (4, 8, 4, 3, 1, 1, 1, (9, 8)),
    "pointwise": (6, 4, 2, 1, 2, 0, 1, (9, 7)),
    "patches": (3, 4, 1, 4, 4, 0, 1, (13, 8)),
    "more padding than kernel": (3, 4, 1, 2, 1, 3, 1, (5, 4)),
    "1-D": (6, 4, 2, 5, 3, 2, 1, (23,)),
    "3-D": (4, 6, 2, 3, 2, 1, 1, (5, 7, 6)),
    "3-D, dilated": (2, 4, 1, 2, 1, 0, 2, (5, 7, 6)),
}
TRANSPOSED = {
    # channels, out, groups, kernel, stride, padding, output padding, dilation, extents
    "": (5, 7, 1, 3, 1, 1, 0, 1, (9, 11)),
    "stride, grouped": (6, 4, 2, 3, 2, 1, 1, 1, (5, 6)),
    "depthwise, dilated": (6, 6, 6, 3, 1, 0, 2, 3, (5, 6)),
    "patches": (3, 4, 1, 2, 2, 0, 0, 1, (5, 4)),
    "1-D": (6, 4, 2, 5, 3, 2, 1, 1, (13,)),
    "3-D": (4, 6, 2, 3, 2, 1, 1, 1, (3, 4, 3)),
}


def convolutions() -> Iterator[tuple[str, Case]]:
    for name, (channels, out, groups, kernel, stride, padding, dilation, extents) in CONVOLUTIONS.items():
        op = getattr(F, f"conv{len(extents)}d")
        given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        shapes = (3, channels, *extents), (out, channels // groups, *[kernel] * len(extents)), (out,)
        yield f"convolution {name}", (lambda x, w, b, op=op, given=given: op(x, w, b, **given), shapes)
    for name, (channels, out, groups, kernel, stride, padding, more, dilation, extents) in TRANSPOSED.items():
        op = getattr(F, f"conv_transpose{len(extents)}d")
        given = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation, "groups": groups}
        shapes = (3, channels, *extents), (channels, out // groups, *[kernel] * len(extents)), (out,)
        yield f"transposed convolution {name}", (lambda x, w, b, op=op, given=given: op(x, w, b, **given), shapes)


def pools() -> Iterator[tuple[str, Case]]:
    line, image, volume = (3, 4, 13), (3, 4, 12, 9), (3, 4, 7, 8, 5)
    yield "mean of lines", (lambda x: F.avg_pool1d(x, 3, 2, 1, True), (line,))
    yield "mean", (lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)), (image,))
    yield "mean without padding", (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (image,))
    yield "mean, divided by 5", (lambda x: F.avg_pool2d(x, 3, 2, 1, True, True, 5), (image,))
    yield "mean of equal windows", (lambda x: F.avg_pool2d(x, 2), (image,))
    yield "mean of wide windows", (lambda x: F.avg_pool2d(x, 11, 1, 5), ((2, 3, 15, 13),))
    yield "mean of volumes", (lambda x: F.avg_pool3d(x, 3, 2, 1), (volume,))
    yield "adaptive mean", (lambda x: F.adaptive_avg_pool2d(x, (5, 3)), (image,))
    yield "adaptive mean, more than there are", (lambda x: F.adaptive_avg_pool2d(x, (15, 4)), (image,))
    yield "adaptive mean of volumes", (lambda x: F.adaptive_avg_pool3d(x, (3, 5, 2)), (volume,))
    yield "maximum of lines", (lambda x: F.max_pool1d(x, 3, 2, 1), (line,))
    yield "maximum", (lambda x: F.max_pool2d(x, 3, 2, 1), (image,))
    yield "maximum of equal windows", (lambda x: F.max_pool2d(x, (2, 3)), (image,))
    yield "maximum, dilated", (lambda x: F.max_pool2d(x, (3, 2), 1, (1, 0), 2, True), (image,))
    yield "maximum of wide windows", (lambda x: F.max_pool2d(x, 7, 1, 3), (image,))
    yield "maximum of volumes", (lambda x: F.max_pool3d(x, 3, 2, 1), (volume,))
    yield "maximum of equal boxes", (lambda x: F.max_pool3d(x, 2), (volume,))
    yield "adaptive maximum of lines", (lambda x: F.adaptive_max_pool1d(x, 5), (line,))
    yield "adaptive maximum", (lambda x: F.adaptive_max_pool2d(x, (5, 4)), (image,))
    yield "adaptive maximum of equal windows", (lambda x: F.adaptive_max_pool2d(x, (4, 3)), (image,))
    yield "adaptive maximum of volumes", (lambda x: F.adaptive_max_pool3d(x, (3, 5, 2)), (volume,))


def pads() -> Iterator[tuple[str, Case]]:
    shapes = (3, 4, 9), (3, 4, 9, 7), (2, 3, 5, 6, 7)
    for rank, shape in enumerate(shapes, 1):
        amounts = (3, 1, 2, 0, 1, 4)[: 2 * rank]
        for mode in ("reflect", "replicate", "circular"):
            yield f"pad {mode} {rank}-D", (lambda x, a=amounts, m=mode: F.pad(x, a, m), (shape,))
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield f"pad {mode} and crop", (lambda x, m=mode: F.pad(x, (-1, 2, 3, -2), m), (shapes[1],))
    yield "crop of the first dimension", (lambda x: F.pad(x, (0,) * 6 + (0, -1)), ((17, 2, 5, 6),))
    yield "pad replicate of one", (lambda x: F.pad(x, (2, 3), "replicate"), ((3, 4, 1),))


def resized() -> Iterator[tuple[str, Case]]:
    for size in ((18, 14), (4, 11), (31, 3)):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            for aligned in (False, True) if mode.startswith("b") else (None,):
                name = f"resize {mode} to {size}{', corners' if aligned else ''}"
                yield name, (lambda x, s=size, m=mode, a=aligned: F.interpolate(x, s, None, m, a), ((2, 3, 9, 7),))
        for mode in ("bilinear", "bicubic"):
            name = f"resize {mode} to {size} without aliasing"
            yield name, (lambda x, s=size, m=mode: F.interpolate(x, s, mode=m, antialias=True), ((2, 3, 9, 7),))
    yield "resize by a factor", (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), ((2, 3, 9, 7),))
    yield "resize lines, nearest", (lambda x: F.interpolate(x, 20), ((2, 3, 7),))
    yield "resize lines", (lambda x: F.interpolate(x, 17, mode="linear"), ((2, 3, 7),))
    for mode in ("nearest", "nearest-exact", "trilinear"):
        yield f"resize volumes {mode}", (lambda x, m=mode: F.interpolate(x, (7, 3, 9), mode=m), ((2, 3, 5, 6, 7),))


def grids() -> Iterator[tuple[str, Case]]:
    for padding in ("zeros", "border", "reflection"):
        for mode in ("bilinear", "nearest", "bicubic"):
            for aligned in (False, True):
                name = f"grid {mode}, {padding}{', corners' if aligned else ''}"
                shapes = (2, 3, 5, 7), (2, 4, 5, 2)
                yield name, (lambda x, g, m=mode, p=padding, a=aligned: F.grid_sample(x, g, m, p, a), shapes)
        for mode in ("bilinear", "nearest"):
            shapes = (2, 3, 5, 7, 4), (2, 4, 3, 5, 3)
            yield (
                f"grid of volumes {mode}, {padding}",
                (lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, p == "border"), shapes),
            )


def bags() -> Iterator[tuple[str, Case]]:
    indices, offsets = torch.randint(0, 20, (31,)), torch.tensor([0, 4, 4, 9, 30])
    matrix = torch.randint(0, 20, (6, 5))
    matrix[2] = 3
    for mode in ("sum", "mean", "max"):
        yield f"bags {mode}", (lambda w, i, o, m=mode: F.embedding_bag(i, w, o, mode=m), ((20, 7), indices, offsets))
        padded = (lambda w, i, m=mode: F.embedding_bag(i, w, mode=m, padding_idx=3), ((20, 7), matrix))
        yield f"bags {mode} with padding", padded
    weighted = (
        lambda w, f, i, o: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=f),
        ((20, 7), (31,), indices, offsets),
    )
    yield "bags, weighted", weighted
    yield "embedding", (lambda w, i: F.embedding(i, w, padding_idx=3), ((20, 7), matrix))


def segments() -> Iterator[tuple[str, Case]]:
    lengths, offsets = torch.tensor([3, 0, 5, 1]), torch.tensor([0, 3, 3, 7])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        yield (
            f"segments {reduce}",
            (lambda x, n, r=reduce: torch.segment_reduce(x, r, lengths=n, unsafe=True), ((9, 5), lengths)),
        )
        yield (
            f"segments {reduce} from a number",
            (lambda x, o, r=reduce: torch.segment_reduce(x, r, offsets=o, initial=1.5), ((9,), offsets)),
        )


def rows() -> Iterator[tuple[str, Case]]:
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")):
        yield f"distances {p}", (lambda a, b, p=p: torch.cdist(a, b, p, EXACTLY), ((2, 7, 5), (2, 9, 5)))
    yield "distances by products", (lambda a, b: torch.cdist(a, b), ((37, 5), (29, 5)))
    yield "weights by direction", (lambda v, g: torch.ops.aten._weight_norm(v, g, 0), ((5, 4, 3), (5, 1, 1)))
    yield "weights by direction of the last", (lambda v, g: torch.ops.aten._weight_norm(v, g, 2), ((5, 4, 3), (1, 1, 3)))
    yield "layer norm", (lambda x, w, b: F.layer_norm(x, (129,), w, b), ((7, 129), (129,), (129,)))
    yield "rms norm", (lambda x, w: F.rms_norm(x, (129,), w), ((7, 129), (129,)))
    yield "group norm", (lambda x, w, b: F.group_norm(x, 3, w, b), ((5, 6, 7, 3), (6,), (6,)))
    yield "batch norm", (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), ((5, 6, 7, 3), (6,), (6,)))
    yield "instance norm", (lambda x, w, b: F.instance_norm(x, None, None, w, b), ((5, 6, 7, 3), (6,), (6,)))
    yield "softmax", (lambda x: F.softmax(x, -1), ((7, 129),))
    yield "log softmax", (lambda x: F.log_softmax(x, 0), ((7, 129),))
    yield "norm", (lambda x: torch.linalg.vector_norm(x, dim=-1), ((7, 129),))
    yield "logsumexp", (lambda x: torch.logsumexp(x, -1), ((7, 129),))
    yield "sums of rows", (lambda x: (x.cumsum(-1), x.mean(0), x.var(-1)), ((7, 129),))
    yield "extremes", (lambda x: (x.max(-1).values, x.amin(0), x.topk(3).values, x.sort(-1).values), ((7, 129),))
    index = torch.randint(0, 7, (13,))
    yield (
        "rows by index",
        (lambda x, y, i: (x[i], x.index_add(0, i, y), x.gather(0, i[:, None] + 0 * y.long())), ((7, 5), (13, 5), index)),
    )


def losses() -> Iterator[tuple[str, Case]]:
    rows, labels = (13, 129), torch.randint(0, 129, (13,))
    ignored = labels.clone()
    ignored[::3] = -100
    yield "cross entropy", (F.cross_entropy, (rows, labels))
    yield "cross entropy, some ignored", (F.cross_entropy, (rows, ignored))
    yield "cross entropy, smooth", (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (rows, labels))
    yield (
        "cross entropy, weighted",
        (lambda x, w, t: F.cross_entropy(x, t, w.detach().abs(), reduction="none"), (rows, (129,), labels)),
    )
    yield "cross entropy of images", (F.cross_entropy, ((3, 7, 5, 4), torch.randint(0, 7, (3, 5, 4))))
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "kl_div"):
        yield name.replace("_", " "), (getattr(F, name), ((7, 129), (7, 129)))
    yield "soft margin loss", (lambda x, t: F.soft_margin_loss(x, t.detach().sign()), ((7, 129), (7, 129)))
    yield "bce", (lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), ((7, 129), (7, 129)))


ACTIVATIONS = [
    "gelu",
    "relu",
    "silu",
    "mish",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "hardshrink",
] + ["softshrink", "softplus", "logsigmoid", "tanhshrink", "softsign", "glu", "relu6"]


def cells() -> Iterator[tuple[str, Case]]:
    for name in ACTIVATIONS:
        yield name, (getattr(F, name), ((7, 130),))
    yield "prelu", (F.prelu, ((7, 129), (129,)))
    yield "gelu by tanh", (lambda x: F.gelu(x, approximate="tanh"), ((7, 129),))
    shapes = [(3, 6), (3, 5), (20, 6), (20, 5), (20,), (20,)]
    yield "lstm cell", (lambda x, h, *w: torch.lstm_cell(x, (h, h.tanh()), *w), tuple(shapes))
    yield "gru cell", (lambda x, h, *w: torch.gru_cell(x, h, *w), tuple((15, *s[1:]) if s[0] == 20 else s for s in shapes))
    for kind in ("lstm", "gru"):
        yield (
            f"{kind} of 4 steps",
            (_Recurrent(kind), ((4, 3, 6), *((20 if kind == "lstm" else 15, *s[1:]) for s in shapes[2:]))),
        )
    yield "linear", (F.linear, ((7, 129), (5, 129), (5,)))
    yield "attention", (lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 3, 7, 8),) * 3)


class _Recurrent(nn.Module):
    """Two gates' weights and biases as arguments; batch in the middle."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, *weights: Tensor) -> Tensor:
        state = x.new_zeros(1, x.shape[1], 5)
        if self.kind == "lstm":
            return torch.lstm(x, (state, state), weights, True, 1, 0.0, True, False, False)[0]
        return torch.gru(x, state, weights, True, 1, 0.0, True, False, False)[0]


_GROUPS = (convolutions, pools, pads, resized, grids, bags, segments, rows, losses, cells)
CASES: dict[str, Case] = {name: case for group in _GROUPS for name, case in group()}


def inputs(name: str, dtype: torch.dtype) -> list[Any]:
    """New ones of a case."""
    return [given if isinstance(given, Tensor) else torch.randn(given).to(dtype) for given in CASES[name][1]]


def main(parts: list[str]) -> int:
    """All cases with one of `parts` in their names; fails where one is wrong."""
    count = 0
    for name, (function, _) in CASES.items():
        for dtype in (torch.float32, torch.bfloat16):
            if parts and not any(part in name for part in parts):
                continue
            args = inputs(name, dtype)
            if not runs_in_pytorch(function, args):
                continue
            found = []
            try:
                found = wrong(function, args)
                for op, given, named in calls_of(function, args):
                    found += [f"{op}: {text}" for text in wrong_alone(op, given, named)]
            except (KitsuneError, NotImplementedError) as error:
                found.append(f"{type(error).__name__}: {error}")
            count += bool(found)
            print("wrong" if found else "right", name, str(dtype).removeprefix("torch."), *found, flush=True)
    return 1 if count else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
