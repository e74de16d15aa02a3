"""Gradients of what makes results of windows of elements along a dimension: each element adds up the results that read it.

So nothing is put anywhere by index: sums are in a fixed order, and no two tasks write to one element.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Readers", "Weight", "Window", "readers", "transposed"]

Window = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From numbers of results to the first and the last element that each is made of; neither ever decreases."""
Weight = Callable[[Tensor, Tensor], Tensor]
"""From numbers of results and of elements, which broadcast, to what the elements count in these results."""
FEW = 8
"""So many results are read one after the other; more are the rows of a reduction."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The results that read an element.

    Attributes:
        results, elements: how many there are.
        first: of an element, the number of a result before which none reads it, as `i · first[0] / first[1] - first[2]`.
        most: numbers of results from there on among which are all that read an element.
    """

    results: int
    elements: int
    first: tuple[int, int, int]
    most: int

    def numbers(self, device: torch.device, step: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Elements [elements, 1], results that may read them [elements, most] (or the one in place `step`, [elements, 1]),
        and which of these there are."""
        factor, divisor, shift = self.first
        element = torch.arange(self.elements, device=device).unsqueeze(1)
        number = element * factor if factor != 1 else element
        number = torch.div(number, divisor, rounding_mode="trunc") if divisor != 1 else number
        number = number + torch.arange(self.most, device=device) if step is None else number + step
        number = number - shift if shift else number
        there = (number >= 0) & (number < self.results)
        return element, number.clamp(0, self.results - 1), there


def readers(results: int, elements: int, window: Window) -> Readers:
    """The results that read each of `elements`, found on the numbers themselves."""
    with _disable_current_modes():
        low, high = window(torch.arange(results))
        element = torch.arange(elements)
        begin = torch.searchsorted(high.contiguous(), element)
        end = torch.searchsorted(low.contiguous(), element, right=True)
        common = math.gcd(results, elements)
        factor, divisor = results // common, elements // common
        about = torch.div(element * factor, divisor, rounding_mode="trunc")
        read = end > begin
        shift = int((about - begin)[read].max()) if bool(read.any()) else 0
        most = int((end - about + shift)[read].max()) if bool(read.any()) else 1
    return Readers(results, elements, (factor, divisor, shift), most)


def transposed(grad: Tensor, dim: int, elements: int, window: Window, weight: Weight | None) -> Tensor:
    """The gradient of a sum over windows.

    Args:
        grad: of the results, along `dim`; in the type in which sums are to be made.
        elements: that there are along that dimension.
        window: of a result.
        weight: asked for elements outside of the window too; None: each counts once.
    """
    found = readers(grad.shape[dim], elements, window)
    element, number, there = found.numbers(grad.device)
    low, high = window(number)
    shape = [elements, found.most, *[1] * (grad.ndim - 1 - dim)]
    there = (there & (low <= element) & (element <= high)).reshape(shape)
    factor = None if weight is None else weight(number, element).to(grad.dtype).reshape(shape)
    if found.most > FEW:
        taken = grad.index_select(dim, number.reshape(-1)).unflatten(dim, number.shape)
        return torch.where(there, taken if factor is None else taken * factor, 0.0).sum(dim + 1)
    parts = []
    for step in range(found.most):
        _, number, _ = found.numbers(grad.device, step)
        taken = grad.index_select(dim, number.reshape(-1))
        taken = taken if factor is None else taken * factor[:, step]
        parts.append(torch.where(there[:, step], taken, 0.0))
    return functools.reduce(torch.add, parts)
