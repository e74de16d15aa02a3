"""A small simulation of bodies with joints that touch the ground, as people write them: a body at a time, with branches.

Each body is a ball; joints keep distances, and impulses are found by sweeps that end when nothing changes any more (after
sequential impulses, E. Catto, "Iterative Dynamics with Temporal Coherence", 2005). Which bodies touch the ground and how many
sweeps are made depends on the state, and differs from step to step: both are values that Python reads.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["CREATURES", "Creature", "Parts", "State", "first_state", "ground", "joint", "step"]

GRAVITY, SECONDS = 9.81, 0.005
RADIUS, FRICTION, SOFT = 0.08, 0.6, 0.2
SWEEPS, ENOUGH = 12, 1e-3


@dataclasses.dataclass(frozen=True)
class Creature:
    """A tree of bodies: `parents[n]` is whom body n + 1 hangs on, at `offsets[n]` from it in the rest pose, metres."""

    parents: Sequence[int]
    offsets: Sequence[tuple[float, float, float]]

    @property
    def bodies(self) -> int:
        return len(self.parents) + 1


def _legs(count: int, segments: int, reach: float) -> Creature:
    """A trunk with legs."""
    parents, offsets = [], []
    for leg in range(count):
        turn = torch.tensor(2 * torch.pi * leg / count)
        side = (reach * float(torch.cos(turn)), reach * float(torch.sin(turn)))
        for segment in range(segments):
            parents.append(len(parents) if segment else 0)
            offsets.append((*side, -0.1 - 0.1 * segment))
    return Creature(tuple(parents), tuple(offsets))


CREATURES = {"ant": _legs(4, 2, 0.25), "halfcheetah": _legs(2, 3, 0.2), "humanoid": _legs(4, 3, 0.2)}
"""As many bodies as those of the same name in MuJoCo's examples have, about."""

Parts = tuple[Callable[..., Any], Callable[..., Any]]
State = tuple[Tensor, Tensor]
"""Places and velocities, [batch, bodies, 3] both."""


def first_state(creature: Creature, batch: int, draw: random.Random, dtype: torch.dtype = torch.float32) -> State:
    """A rest pose above the ground, moved and pushed at random."""
    places = [torch.zeros(3, dtype=dtype)]
    for parent, offset in zip(creature.parents, creature.offsets, strict=True):
        places.append(places[parent] + torch.tensor(offset, dtype=dtype))
    rest = torch.stack(places)
    rest[:, 2] += RADIUS - rest[:, 2].min() + draw.uniform(-0.01, 0.05)
    noise = torch.Generator().manual_seed(draw.randrange(1 << 30))
    shift = 0.01 * torch.randn(batch, creature.bodies, 3, generator=noise, dtype=dtype)
    speed = torch.randn(batch, creature.bodies, 3, generator=noise, dtype=dtype)
    return rest + shift, 0.5 * speed


def step(creature: Creature, state: State, push: Tensor, parts: Parts | None = None) -> tuple[State, tuple[Any, ...]]:
    """One step.

    Args:
        push: forces on bodies by their mass, [batch, bodies, 3].
        parts: what is done with a joint, and with a body on the ground: `joint` and `ground`, or as somebody else runs them.

    Returns:
        The next state, and the path: which bodies touched the ground in some member of the batch, and the sweeps.
    """
    joint_, ground_ = parts or (joint, ground)
    x, v = ([*given.unbind(1)] for given in state)
    down = torch.cat((x[0].new_zeros(2), x[0].new_full((1,), -GRAVITY)))  # nothing is copied from the host
    v = [own + SECONDS * (down + force) for own, force in zip(v, push.unbind(1), strict=True)]
    depths = [RADIUS - (place + SECONDS * speed)[:, 2:] for place, speed in zip(x, v, strict=True)]
    touching = [bool((depth > 0).any()) for depth in depths]
    pressed = [torch.zeros_like(depth) for depth in depths]
    made = 0
    for _ in range(SWEEPS):
        made += 1
        before = list(v)
        for child, parent in enumerate(creature.parents, 1):
            v[parent], v[child] = joint_(x[parent], x[child], v[parent], v[child], creature.offsets[child - 1])
        for body, touches in enumerate(touching):
            if touches:
                v[body], pressed[body] = ground_(v[body], pressed[body], depths[body])
        change = torch.stack([(new - old).abs().max() for new, old in zip(v, before, strict=True)]).max()
        if bool(change < ENOUGH):
            break
    places = [place + SECONDS * speed for place, speed in zip(x, v, strict=True)]
    return (torch.stack(places, 1), torch.stack(v, 1)), (*touching, made)


def joint(a: Tensor, b: Tensor, va: Tensor, vb: Tensor, offset: tuple[float, float, float]) -> tuple[Tensor, Tensor]:
    """Velocities of two bodies that are to keep their distance."""
    apart = b - a
    distance = apart.norm(dim=-1, keepdim=True)
    along = apart / distance
    length = sum(one * one for one in offset) ** 0.5
    impulse = 0.5 * (((vb - va) * along).sum(-1, keepdim=True) + SOFT / SECONDS * (distance - length))
    return va + impulse * along, vb - impulse * along


def ground(v: Tensor, pressed: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """The velocity of a body that must not sink in, and its impulse so far; other members of the batch keep theirs."""
    touches = depth > 0
    wanted = torch.where(touches, pressed - v[:, 2:] + SOFT / SECONDS * depth.clamp(max=0.01), 0 * depth)
    total = wanted.clamp_min(0)
    slide = v[:, :2]
    slowed = slide * (1 - FRICTION * (total - pressed).abs() / slide.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(0, 1)
    moved = torch.cat((slowed, v[:, 2:] + total - pressed), -1)
    return torch.where(touches, moved, v), total
