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
        parts: its straight-line pieces as somebody else runs them.

    Returns:
        The next state, and the path: which bodies touched the ground in some member of the batch, and the sweeps.
    """
    parts, bodies = parts or Parts(), creature.bodies
    begun = parts.begin(*state, push)
    x, v, depths, under = ([*begun[n * bodies : (n + 1) * bodies]] for n in range(4))
    pressed = [torch.zeros_like(depth) for depth in depths]
    touching = [bool(one) for one in under]
    made = 0
    for _ in range(SWEEPS):
        made += 1
        before = list(v)
        for child, parent in enumerate(creature.parents, 1):
            v[parent], v[child] = parts.joint(x[parent], x[child], v[parent], v[child], creature.offsets[child - 1])
        for body, touches in enumerate(touching):
            if touches:
                v[body], pressed[body] = parts.ground(v[body], pressed[body], depths[body])
        if bool(parts.change(*v, *before) < ENOUGH):
            break
    return parts.end(state[0], *v), (*touching, made)


def begin(places: Tensor, speeds: Tensor, push: Tensor) -> tuple[Tensor, ...]:
    """Of each body its place, velocity after the forces, how deep it will be, and whether some member's is under the ground:
    all bodies' of the first, and so on, each a tensor of its own."""
    down = torch.cat((places.new_zeros(2), places.new_full((1,), -GRAVITY)))  # nothing is copied from the host
    v = [own + SECONDS * (down + force) for own, force in zip(speeds.unbind(1), push.unbind(1), strict=True)]
    depths = [RADIUS - (place + SECONDS * speed)[:, 2:] for place, speed in zip(places.unbind(1), v, strict=True)]
    x = [place.clone() for place in places.unbind(1)]
    return (*x, *v, *depths, *[(depth > 0).any() for depth in depths])


def change(*velocities: Tensor) -> Tensor:
    """The largest change: velocities of all bodies, and those before."""
    half = len(velocities) // 2
    return torch.stack([(new - old).abs().max() for new, old in zip(velocities[:half], velocities[half:], strict=True)]).max()


def end(places: Tensor, *velocities: Tensor) -> State:
    """The next state."""
    moved = [place + SECONDS * speed for place, speed in zip(places.unbind(1), velocities, strict=True)]
    return torch.stack(moved, 1), torch.stack(velocities, 1)


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


@dataclasses.dataclass
class Parts:
    """Pieces of a step in which no value is read: beginning and end, what is done with a joint and with a body on the ground,
    and how much a sweep has changed."""

    begin: Callable[..., Any] = staticmethod(begin)
    joint: Callable[..., Any] = staticmethod(joint)
    ground: Callable[..., Any] = staticmethod(ground)
    change: Callable[..., Any] = staticmethod(change)
    end: Callable[..., Any] = staticmethod(end)

    def each(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Parts:
        """The same, each as `wrap` gives it."""
        return Parts(*(wrap(part) for part in (self.begin, self.joint, self.ground, self.change, self.end)))
