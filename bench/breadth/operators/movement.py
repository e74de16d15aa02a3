"""Operators that move: padding, shifts, joins, parts, repetition, orders of dimensions, patches.

What PyTorch would return as a view is copied, as whoever reads it next would have it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.breadth.operators.table import beyond, flags, table
from bench.case import BenchCase

__all__ = ["movement"]

LARGE, SMALL = (8192, 4096), (63, 129)
CUBE, BOX = (128, 256, 1024), (5, 13, 27)
IMAGES, IMAGE = (32, 64, 128, 128), (2, 8, 9, 7)
LONG, SHORT = (1 << 24,), (1000,)


def _pads() -> list[BenchCase]:
    images = {
        "constant": lambda x: F.pad(x, (1, 2, 3, 0), value=0.5),
        "reflect": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
        "replicate": lambda x: F.pad(x, (1, 2, 3, 1), mode="replicate"),
        "circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
        "crop": lambda x: F.pad(x, (-1, -2, -1, -1)),
    }
    lines = {"rows": lambda x: F.pad(x, (0, 0, 5, 3)), "columns": lambda x: F.pad(x, (3, 4))}
    return [
        *table("pad", images, IMAGES, IMAGE),
        *table("pad", lines, LARGE, SMALL),
        *table("pad", {"vector": lambda x: F.pad(x, (3, 4), value=1.0)}, LONG, SHORT),
        *table("pad", {"volume": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1))}, (8, 16, 32, 64, 64), (1, 2, 3, 5, 7)),
    ]


def _shifts() -> list[BenchCase]:
    functions = {
        "roll": lambda x: x.roll(7, -1),
        "roll_both": lambda x: x.roll((3, -5), (0, 1)),
        "roll_flat": lambda x: x.roll(1001),
        "flip": lambda x: x.flip(-1),
        "flip_rows": lambda x: x.flip(0),
        "rot90": lambda x: x.rot90(),
        "tril": torch.tril,
        "triu": lambda x: x.triu(1),
        "transpose": lambda x: x.t().contiguous(),
        "copy": torch.clone,
        "checkered": lambda x: x[::2, 1::2].contiguous(),
    }
    orders = {
        "permute_120": lambda x: x.permute(1, 2, 0).contiguous(),
        "permute_021": lambda x: x.transpose(1, 2).contiguous(),
        "permute_102": lambda x: x.transpose(0, 1).contiguous(),
        "heads": lambda x: x.unflatten(-1, (-1, 32)).transpose(1, 2).contiguous(),
        "heads_back": lambda x: x.transpose(0, 1).flatten(1),
    }
    images = {
        "channels_last": lambda x: x.permute(0, 2, 3, 1).contiguous(),
        "shuffle_pixels": lambda x: F.pixel_shuffle(x, 2),
        "shuffle_channels": lambda x: F.channel_shuffle(x, 4),
        "windows": lambda x: x[:, :, : x.shape[2] // 4 * 4].unfold(2, 4, 4).contiguous(),
    }
    even = {"unshuffle_pixels": lambda x: F.pixel_unshuffle(x, 2)}
    return [
        *table("move", functions, LARGE, SMALL),
        *table("move", {"flip_vector": lambda x: x.flip(0), "roll_vector": lambda x: x.roll(5)}, LONG, SHORT),
        *table("move", orders, CUBE, (5, 13, 96)),
        *table("move", images, IMAGES, IMAGE),
        *table("move", even, IMAGES, (2, 8, 10, 6)),
    ]


def _joins() -> list[BenchCase]:
    def split(x):
        left, right = x.split([x.shape[1] // 3, x.shape[1] - x.shape[1] // 3], 1)
        return left.contiguous(), right * 2

    two = {
        "columns": lambda x, y: torch.cat([x, y], -1),
        "rows": lambda x, y: torch.cat([x, y]),
        "stack": lambda x, y: torch.stack([x, y]),
        "stack_last": lambda x, y: torch.stack([x, y], -1),
        "activated": lambda x, y: torch.cat([torch.relu(x), torch.sigmoid(y)], -1),
        "interleave": lambda x, y: torch.stack([x, y], 1).flatten(0, 1),
    }
    return [
        *table("join", two, [LARGE] * 2, [SMALL] * 2),
        *table("join", {"vectors": lambda x, y, z: torch.cat([x, y, z])}, [LONG] * 3, [SHORT, (7,), (129,)]),
        *table("join", {"narrow": lambda x, y: torch.cat([x, y], -1)}, [(1 << 20, 3), (1 << 20, 16)], [(129, 3), (129, 5)]),
        *table("join", {"four": lambda *x: torch.cat(x, 1)}, [(64, 32, 64, 64)] * 4, [(2, 3, 5, 7)] * 4),
        *table("part", {"split": split, "chunk": lambda x: [c * 2 for c in x.chunk(4, -1)]}, LARGE, (63, 132)),
    ]


def _parts() -> list[BenchCase]:
    functions = {
        "rows": lambda x: x[5 : x.shape[0] // 2].clone(),
        "columns": lambda x: x[:, 3 : x.shape[1] // 2].contiguous(),
        "both": lambda x: x[1:-1, 1:-1].contiguous(),
        "column": lambda x: x[:, 7].contiguous(),
        "last_row": lambda x: x[-1].clone(),
        "narrow": lambda x: x.narrow(0, 3, 55) + 1,
    }
    vector = {
        "vector": lambda x: x[: x.shape[0] // 2].clone(),
        "vector_tail": lambda x: x[7:] * 2,
        "differences": lambda x: x[1:] - x[:-1],
    }
    scattered = {"strided": lambda x: x[:, ::64].contiguous(), "diagonal": lambda x: x.diagonal().contiguous()}
    return [
        *table("part", functions, LARGE, SMALL, unread=beyond()),
        *table("part", {**vector, "vector_strided": lambda x: x[::2].clone()}, LONG, SHORT, unread=beyond()),
        *table("part", scattered, LARGE, SMALL, unread=beyond(scattered=True)),
    ]


def _repetition() -> list[BenchCase]:
    functions = {
        "repeat": lambda x: x.repeat(2, 2),
        "tile": lambda x: x.tile(3),
        "interleave": lambda x: x.repeat_interleave(2, 1),
        "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1).contiguous(),
    }
    return [
        *table("repeat", functions, (4096, 2048), SMALL),
        *table("repeat", {"vector": lambda x: x.expand(512, -1).contiguous()}, (1 << 16,), (1000,)),
        *table("repeat", {"diag_embed": torch.diag_embed}, (64, 512), (3, 17)),
        *table("repeat", {"diag": torch.diag}, (4096,), (129,)),
        *table("repeat", {"vander": lambda x: x.unsqueeze(-1) ** torch.arange(8, device=x.device)}, (1 << 21,), (129,)),
    ]


def _written() -> list[BenchCase]:
    def halves(x, y):
        return torch.slice_scatter(x, y, 1, 8, 8 + y.shape[1])

    def rows(x, y):
        return torch.slice_scatter(x, y, 0, 3, 3 + y.shape[0])

    return [
        *table("write", {"slice": halves}, [LARGE, (8192, 2048)], [SMALL, (63, 27)]),
        *table("write", {"slice_rows": rows}, [LARGE, (4096, 4096)], [SMALL, (27, 129)]),
        *table("write", {"select": lambda x, y: torch.select_scatter(x, y, 0, 5)}, [LARGE, (4096,)], [SMALL, (129,)]),
        *table("write", {"select_column": lambda x, y: torch.select_scatter(x, y, 1, 5)}, [LARGE, (8192,)], [SMALL, (63,)]),
        *table("write", {"diagonal": torch.diagonal_scatter}, [(4096, 4096), (4096,)], [(63, 63), (63,)]),
        *table(
            "write", {"strided": lambda x, y: torch.slice_scatter(x, y, 1, step=2)}, [LARGE, (8192, 2048)], [SMALL, (63, 65)]
        ),
        *table(
            "write", {"vector": lambda x, y: torch.slice_scatter(x, y, 0, 9, 9 + len(y))}, [LONG, (1 << 23,)], [SHORT, (129,)]
        ),
        *table(
            "write",
            {"masked": lambda x, m, y: torch.where(m, y, x)},
            [LARGE, flags(*LARGE), (1, 4096)],
            [SMALL, flags(*SMALL), (1, 129)],
        ),
    ]


def _patches() -> list[BenchCase]:
    folded = {"fold": lambda x: F.fold(x, (56, 56), 3, padding=1)}
    apart = {"fold_apart": lambda x: F.fold(x, (56, 56), 2, stride=2)}
    return [
        *table("patch", {"unfold": lambda x: F.unfold(x, 3, padding=1)}, (16, 64, 56, 56), IMAGE),
        *table("patch", {"unfold_apart": lambda x: F.unfold(x, 4, stride=4)}, (16, 64, 128, 128), (2, 3, 12, 8)),
        *table("patch", folded, (16, 64 * 9, 56 * 56), (1, 2 * 9, 56 * 56)),
        *table("patch", apart, (64, 64 * 4, 28 * 28), (1, 2 * 4, 28 * 28)),
        *table("patch", {"frames": lambda x: x.unfold(-1, 400, 160).contiguous()}, (64, 160_000), (2, 2000)),
    ]


def movement() -> list[BenchCase]:
    """All of them."""
    return [*_pads(), *_shifts(), *_joins(), *_parts(), *_repetition(), *_written(), *_patches()]
