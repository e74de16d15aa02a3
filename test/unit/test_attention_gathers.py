"""Attention whose mask is looked up by index, and whose keys are of any number up to a bound: one stage of its engine."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

CASES = [(1, 4, 1, 64, 33), (4, 1, 1, 64, 40), (2, 8, 1, 128, 129), (1, 1, 7, 64, 24), (1, 2, 129, 64, 136)]
"""Samples, heads that share keys, rows, elements of a head, keys."""


class Looked(nn.Module):
    """Attention of two groups of heads to those of the first `count` keys that a mask, looked up by index, lets through."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, start: Tensor, count: Tensor) -> Tensor:
        places = torch.arange(k.shape[2])
        own = torch.arange(q.shape[0]).view(-1, 1, 1, 1)
        keep = mask.bool()[own, (places + start).clamp(0, mask.shape[1] - 1)[None, None, None]]
        q, times = q.float(), q.shape[1] // k.shape[1]
        k, v = (x[:, :, None].expand(-1, -1, times, -1, -1).reshape(*q.shape[:2], *x.shape[2:]) for x in (k, v))
        scores = torch.where(keep, q @ k.float().transpose(2, 3) * q.shape[-1] ** -0.5, float("-inf"))
        scores = torch.where(places < count, scores, float("-inf"))
        weights = torch.softmax(scores, -1).to(v.dtype)
        return (weights.float() @ v.float()).to(v.dtype)


@pytest.mark.parametrize("case", in_turn(CASES, 2), ids=str)
def test_a_mask_that_is_looked_up(case: tuple[int, ...]) -> None:
    batch, times, rows, width, keys = case
    torch.manual_seed(sum(case))
    q = torch.randn(batch, 2 * times, rows, width).bfloat16()
    k, v = (torch.randn(batch, 2, keys, width).bfloat16() for _ in range(2))
    mask = (torch.rand(batch, keys + 9) < 0.8).long()
    mask[:, 3:6] = 1
    args = q, k, v, mask, torch.tensor(3), torch.tensor(keys - 5)
    program = planned_for_gpu(Looked(), *args)
    engines = [stage["engine"] for stage in program.summary["stages"]]
    assert "attention" in engines and "mma" not in engines, engines
    keep = mask[:, 3 : keys + 3].bool() & (torch.arange(keys) < keys - 5)
    k, v = (x.double().repeat_interleave(times, 1) for x in (k, v))
    want = F.scaled_dot_product_attention(q.double(), k, v, attn_mask=keep[:, None, None])
    assert (program(*args).double() - want).abs().max() < 0.03
