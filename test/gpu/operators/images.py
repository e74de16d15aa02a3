"""Images: convolutions of all kinds with what follows them, pooling, resizing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from test.gpu.operators.case import BF16, F16, F32, F64, TF32, Case, Input, floats

__all__ = ["CASES"]

CASES: dict[str, Case] = {}
LAST = torch.channels_last


def _last(make: Input) -> Input:
    return lambda device: make(device).to(memory_format=LAST)


def _image(*shape: int, dtype: torch.dtype = BF16, last: bool = False) -> Input:
    made = floats(*shape, dtype=dtype)
    return _last(made) if last else made


KINDS: dict[str, tuple[tuple[int, int, int, int], dict]] = {
    "1x1": ((3, 32, 13, 13), {"out_channels": 48, "kernel_size": 1}),
    "1x1_stride": ((3, 32, 13, 13), {"out_channels": 48, "kernel_size": 1, "stride": 2}),
    "1x1_odd": ((3, 27, 13, 7), {"out_channels": 13, "kernel_size": 1}),
    "3x3": ((3, 32, 13, 13), {"out_channels": 48, "kernel_size": 3, "padding": 1}),
    "3x3_valid": ((1, 32, 27, 7), {"out_channels": 64, "kernel_size": 3}),
    "3x3_odd": ((2, 13, 13, 27), {"out_channels": 7, "kernel_size": 3, "padding": 1}),
    "3x3_one": ((1, 1, 27, 27), {"out_channels": 1, "kernel_size": 3, "padding": 1}),
    "3x3_stride": ((3, 64, 27, 27), {"out_channels": 64, "kernel_size": 3, "padding": 1, "stride": 2}),
    "3x3_dilated": ((2, 32, 27, 27), {"out_channels": 32, "kernel_size": 3, "padding": 2, "dilation": 2}),
    "3x3_same": ((2, 32, 13, 13), {"out_channels": 32, "kernel_size": 3, "padding": "same"}),
    "3x3_wide_pad": ((2, 32, 7, 7), {"out_channels": 32, "kernel_size": 3, "padding": 3}),
    "3x3_reflect": ((2, 16, 13, 13), {"out_channels": 32, "kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
    "3x3_circular": ((2, 16, 13, 13), {"out_channels": 32, "kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    "3x5_uneven": ((2, 32, 13, 27), {"out_channels": 32, "kernel_size": (3, 5), "padding": (1, 0), "stride": (1, 3)}),
    "5x5": ((2, 32, 27, 27), {"out_channels": 32, "kernel_size": 5, "padding": 2}),
    "7x7_stem": ((2, 3, 64, 64), {"out_channels": 64, "kernel_size": 7, "padding": 3, "stride": 2}),
    "7x7_patch": ((2, 3, 56, 56), {"out_channels": 96, "kernel_size": 7, "stride": 7}),
    "groups": ((2, 32, 13, 13), {"out_channels": 64, "kernel_size": 3, "padding": 1, "groups": 4}),
    "groups_odd": ((2, 9, 13, 13), {"out_channels": 15, "kernel_size": 3, "padding": 1, "groups": 3}),
    "depthwise": ((3, 32, 27, 27), {"out_channels": 32, "kernel_size": 3, "padding": 1, "groups": 32}),
    "depthwise_odd": ((3, 27, 13, 13), {"out_channels": 27, "kernel_size": 3, "padding": 1, "groups": 27}),
    "depthwise_stride": ((2, 32, 27, 27), {"out_channels": 32, "kernel_size": 5, "padding": 2, "stride": 2, "groups": 32}),
    "depthwise_dilated": ((2, 32, 27, 27), {"out_channels": 32, "kernel_size": 3, "padding": 2, "dilation": 2, "groups": 32}),
    "depthwise_multiplier": ((2, 16, 13, 13), {"out_channels": 32, "kernel_size": 3, "padding": 1, "groups": 16}),
    "whole_image": ((27, 16, 7, 7), {"out_channels": 100, "kernel_size": 7}),
    "no_bias": ((3, 32, 13, 13), {"out_channels": 48, "kernel_size": 3, "padding": 1, "bias": False}),
}
for _name, (_shape, _numbers) in KINDS.items():
    for _type, _dtype in (("bf16", BF16), ("f32", F32)):
        for _last_ in (False, True):
            if _type == "f32" and _name not in ("1x1", "3x3", "3x3_odd", "3x3_stride", "groups", "depthwise", "7x7_stem"):
                continue
            if _last_ and _name in ("3x3_reflect", "3x3_circular", "3x3_same", "no_bias", "3x3_wide_pad"):
                continue
            CASES[f"conv_{_name}_{_type}{'_last' if _last_ else ''}"] = Case(
                lambda conv, x: conv(x),
                [_image(*_shape, dtype=_dtype, last=_last_)],
                lambda channels=_shape[1], numbers=_numbers: [nn.Conv2d(channels, **numbers)],
                dtype=_dtype,
            )


def _conv(inside: int, outside: int, **numbers) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, padding=1, **numbers)


def _norm(channels: int) -> nn.BatchNorm2d:
    """A batch norm with statistics that are not those of a new one."""
    made = nn.BatchNorm2d(channels)
    assert made.running_mean is not None and made.running_var is not None
    nn.init.normal_(made.running_mean)
    nn.init.uniform_(made.running_var, 0.5, 2.0)
    nn.init.normal_(made.weight)
    nn.init.normal_(made.bias)
    return made


_RESNET = lambda: [_conv(32, 32, bias=False), _norm(32), _conv(32, 32, bias=False), _norm(32)]  # noqa: E731
CASES |= {
    "conv_f16": Case(lambda c, x: c(x), [_image(2, 32, 13, 13, dtype=F16)], lambda: [_conv(32, 32)], dtype=F16),
    "conv_f64": Case(lambda c, x: c(x), [_image(2, 3, 7, 7, dtype=F64)], lambda: [_conv(3, 5)], dtype=F64),
    "conv_tf32": Case(lambda c, x: c(x), [_image(2, 32, 13, 13, dtype=F32)], lambda: [_conv(32, 32)], dtype=TF32),
    "conv_relu": Case(lambda c, x: F.relu(c(x)), [_image(2, 32, 13, 13)], lambda: [_conv(32, 48)]),
    "conv_gelu_last": Case(lambda c, x: F.gelu(c(x)), [_image(2, 32, 13, 13, last=True)], lambda: [_conv(32, 48)]),
    "conv_bn_relu": Case(lambda c, n, x: F.relu(n(c(x))), [_image(2, 32, 13, 13)], lambda: [_conv(32, 48), _norm(48)]),
    "conv_bn_relu_residual": Case(
        lambda c, n, x: F.relu(n(c(x)) + x), [_image(2, 32, 13, 13)], lambda: [_conv(32, 32, bias=False), _norm(32)]
    ),
    "conv_block": Case(lambda a, n, b, m, x: F.relu(m(b(F.relu(n(a(x))))) + x), [_image(2, 32, 13, 13)], _RESNET),
    "conv_block_last": Case(
        lambda a, n, b, m, x: F.relu(m(b(F.relu(n(a(x))))) + x), [_image(2, 32, 13, 13, last=True)], _RESNET
    ),
    "conv_block_down": Case(
        lambda a, b, s, x: F.relu(b(F.relu(a(x))) + s(x)),
        [_image(2, 32, 27, 27)],
        lambda: [nn.Conv2d(32, 64, 3, 2, 1), _conv(64, 64), nn.Conv2d(32, 64, 1, 2)],
    ),
    "conv_pool_linear": Case(
        lambda c, f, x: f(F.relu(c(x)).mean((2, 3))), [_image(3, 16, 13, 13)], lambda: [_conv(16, 32), nn.Linear(32, 10)]
    ),
    "conv_flatten_linear": Case(
        lambda c, f, x: f(F.relu(c(x)).flatten(1)), [_image(3, 8, 7, 7)], lambda: [_conv(8, 16), nn.Linear(784, 10)]
    ),
    "conv_max_pool": Case(lambda c, x: F.max_pool2d(F.relu(c(x)), 3, 2, 1), [_image(2, 3, 32, 32)], lambda: [_conv(3, 32)]),
    "conv_concat": Case(
        lambda a, b, x: b(torch.cat([x, F.relu(a(x))], 1)), [_image(2, 16, 13, 13)], lambda: [_conv(16, 16), _conv(32, 16)]
    ),
    "conv_upsample": Case(
        lambda a, b, x: b(F.interpolate(a(x), scale_factor=2)), [_image(2, 16, 7, 7)], lambda: [_conv(16, 16), _conv(16, 8)]
    ),
    "conv_excite": Case(
        lambda c, f, g, x: (y := c(x)) * torch.sigmoid(g(F.silu(f(y.mean((2, 3), keepdim=True))))),
        [_image(2, 16, 13, 13)],
        lambda: [_conv(16, 32), nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)],
    ),
    "conv_group_norm": Case(
        lambda c, n, x: F.silu(n(c(x))), [_image(2, 16, 13, 13)], lambda: [_conv(16, 32), nn.GroupNorm(4, 32)]
    ),
    **{
        f"group_norm_{groups}_of_{shape[1]}{'_last' if last else ''}_{size}x{kind}": Case(
            lambda c, n, x: c(F.silu(n(x))),
            [_image(*shape, last=last)],
            lambda shape=shape, groups=groups: [_conv(shape[1], 8), nn.GroupNorm(groups, shape[1])],
        )
        for shape, groups, last in (
            ((2, 64, 32, 32), 4, False),
            ((2, 64, 32, 32), 1, True),
            ((1, 96, 40, 24), 32, True),
            ((3, 60, 65, 63), 12, False),
        )
        for size, kind in ((shape[2], shape[3]),)
    },
    "conv_instance_norm": Case(lambda c, n, x: n(c(x)), [_image(2, 16, 13, 13)], lambda: [_conv(16, 8), nn.InstanceNorm2d(8)]),
    "conv_layer_norm": Case(
        lambda c, n, x: n(c(x).permute(0, 2, 3, 1)), [_image(2, 16, 13, 13)], lambda: [_conv(16, 32), nn.LayerNorm(32)]
    ),
    "conv_next": Case(
        lambda d, n, f, g, x: x + g(F.gelu(f(n(d(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2),
        [_image(2, 32, 14, 14)],
        lambda: [nn.Conv2d(32, 32, 7, padding=3, groups=32), nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)],
    ),
    "conv_patches": Case(
        lambda c, x: c(x).flatten(2).transpose(1, 2), [_image(2, 3, 32, 32)], lambda: [nn.Conv2d(3, 64, 8, 8)]
    ),
    "conv_1d": Case(lambda c, x: c(x), [floats(3, 27, 129)], lambda: [nn.Conv1d(27, 13, 5, padding=2)]),
    "conv_1d_dilated": Case(lambda c, x: c(x), [floats(3, 16, 129)], lambda: [nn.Conv1d(16, 32, 3, padding=4, dilation=4)]),
    "conv_1d_depthwise": Case(
        lambda c, x: c(x)[..., :129], [floats(3, 32, 129)], lambda: [nn.Conv1d(32, 32, 4, padding=3, groups=32)]
    ),
    "conv_1d_f32": Case(lambda c, x: c(x), [floats(3, 27, 129, dtype=F32)], lambda: [nn.Conv1d(27, 13, 3)], dtype=F32),
    "conv_3d": Case(lambda c, x: c(x), [floats(2, 8, 5, 7, 7)], lambda: [nn.Conv3d(8, 16, 3, padding=1)]),
    "conv_transposed": Case(lambda c, x: c(x), [_image(2, 16, 7, 7)], lambda: [nn.ConvTranspose2d(16, 8, 4, 2, 1)]),
    "conv_transposed_odd": Case(
        lambda c, x: c(x),
        [_image(2, 13, 7, 7, dtype=F32)],
        lambda: [nn.ConvTranspose2d(13, 7, 3, 2, 1, output_padding=1)],
        dtype=F32,
    ),
    "conv_transposed_groups": Case(
        lambda c, x: c(x), [_image(2, 16, 7, 7)], lambda: [nn.ConvTranspose2d(16, 8, 2, 2, groups=2)]
    ),
    "conv_transposed_1d": Case(lambda c, x: c(x), [floats(2, 16, 27)], lambda: [nn.ConvTranspose1d(16, 8, 4, 2, 1)]),
    "conv_transposed_dilated": Case(lambda c, x: c(x), [_image(2, 8, 7, 7)], lambda: [nn.ConvTranspose2d(8, 8, 3, dilation=2)]),
    "conv_function": Case(lambda x, w: F.conv2d(x, w, padding=1), [_image(2, 8, 13, 13), floats(16, 8, 3, 3)]),
    "conv_unbatched": Case(lambda c, x: c(x), [floats(8, 13, 13)], lambda: [_conv(8, 16)]),
    "pixel_shuffle": Case(lambda c, x: F.pixel_shuffle(c(x), 2), [_image(2, 8, 13, 13)], lambda: [_conv(8, 16)]),
    "unfold": Case(lambda x: F.unfold(x, 3, padding=1), [_image(2, 3, 13, 13)]),
    "unfold_one_window": Case(lambda x: x.unfold(0, 2, 2) * 2, [_image(3, 5, 7)]),
    "max_pool": Case(lambda x: F.max_pool2d(x, 2), [_image(2, 13, 27, 27)]),
    "max_pool_pad": Case(lambda x: F.max_pool2d(x, 3, 2, 1), [_image(2, 13, 27, 27)]),
    "max_pool_last": Case(lambda x: F.max_pool2d(x, 3, 2, 1), [_image(2, 16, 27, 27, last=True)]),
    "max_pool_dilated": Case(lambda x: F.max_pool2d(x, 3, 1, 1, 2), [_image(2, 4, 27, 27, dtype=F32)], dtype=F32),
    "max_pool_ceil": Case(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), [_image(2, 4, 28, 28)]),
    "max_pool_indices": Case(lambda x: F.max_pool2d(x, 2, return_indices=True), [_image(2, 4, 12, 12, dtype=F32)], dtype=F32),
    "max_pool_1d": Case(lambda x: F.max_pool1d(x, 3), [floats(3, 7, 129)]),
    "max_pool_3d": Case(lambda x: F.max_pool3d(x, 2), [floats(2, 3, 6, 8, 8)]),
    "avg_pool": Case(lambda x: F.avg_pool2d(x, 3, 2, 1), [_image(2, 13, 27, 27)]),
    "avg_pool_uncounted": Case(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [_image(2, 13, 27, 27)]),
    "avg_pool_ceil": Case(lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), [_image(2, 4, 28, 28)]),
    "avg_pool_1d": Case(lambda x: F.avg_pool1d(x, 4), [floats(3, 7, 129)]),
    "adaptive_avg_1": Case(lambda x: F.adaptive_avg_pool2d(x, 1), [_image(2, 129, 7, 7)]),
    "adaptive_avg_7": Case(lambda x: F.adaptive_avg_pool2d(x, 7), [_image(2, 13, 14, 14)]),
    "adaptive_avg_uneven": Case(lambda x: F.adaptive_avg_pool2d(x, (3, 5)), [_image(2, 13, 13, 13)]),
    "adaptive_max": Case(lambda x: F.adaptive_max_pool2d(x, 1), [_image(2, 13, 7, 7)]),
    "lp_pool": Case(lambda x: F.lp_pool2d(x.abs(), 2, 2), [_image(2, 3, 12, 12, dtype=F32)], dtype=F32),
    "nearest": Case(lambda x: F.interpolate(x, size=(13, 20)), [_image(2, 3, 7, 7)]),
    "bilinear": Case(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        [_image(2, 3, 7, 7, dtype=F32)],
        dtype=F32,
    ),
    "bilinear_corners": Case(
        lambda x: F.interpolate(x, size=(13, 9), mode="bilinear", align_corners=True),
        [_image(2, 3, 7, 7, dtype=F32)],
        dtype=F32,
    ),
    "bicubic": Case(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [_image(1, 3, 7, 7, dtype=F32)], dtype=F32),
    "grid_sample": Case(
        lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False),
        [_image(2, 3, 13, 13, dtype=F32), floats(2, 7, 9, 2, dtype=F32)],
        dtype=F32,
    ),
    "channel_shuffle": Case(lambda x: F.channel_shuffle(x, 4), [_image(2, 16, 7, 7)]),
    "batch_norm": Case(lambda n, x: n(x), [_image(2, 13, 7, 7)], lambda: [_norm(13)]),
    "local_response": Case(lambda x: F.local_response_norm(x, 5), [_image(2, 13, 7, 7, dtype=F32)], dtype=F32),
}
