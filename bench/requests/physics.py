"""Steps of physics, whose calls depend on the state, through `kitsune_mlir.window()` and as others run them, in turns.

    python -m bench.requests.physics [CASE...] [--device cpu] [--batch 1,64] [--peers 'eager; window; ...'] [--calls 20]
        [--rounds 3] [--size 128] [--after N] [--json FILE]

Cases: `bodies_NAME` are the creatures of `bench/requests/bodies.py` in f32; `mujoco_NAME` environments of mujoco-torch (extra
`physics`), unmodified, in f64: a batch by `torch.vmap`, "members" the members of a batch one after the other. Each call is a
step from a state of an episode with random forces or controls, and must agree with eager's to 1e-5 of the largest number of
the state. Peers and figures are those of `bench.requests.window_run`, and of creatures "parts, trace tree" and "parts,
compile", each function between reads of values by itself; "mjx" is MuJoCo's own steps in JAX, where that is.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from bench.requests import bodies, mujoco_steps
from bench.requests.window_nets import Net
from bench.requests.window_peers import DEFAULT
from bench.requests.window_run import parser_of, run

NEAR = 1e-5
BATCHES = (1, 64)
PUSH = 5.0
"""Metres a second squared."""


class Stepped(nn.Module):
    """A creature's step."""

    def __init__(self, creature: bodies.Creature):
        super().__init__()
        self.creature = creature
        self.parts = bodies.Parts()

    def forward(self, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, tuple[Any, ...]]:
        """Places, velocities and forces, to places and velocities behind each other, and the path."""
        (x, v), path = bodies.step(self.creature, given[:2], given[2], self.parts)
        return torch.cat((x, v), -1), path

    def peer(self, name: str) -> Callable[[Any], Any]:
        """What prepares the peer of this name, for `bench.requests.window_peers`: each piece of a step between reads of values
        by a trace tree, or through torch.compile."""
        kind, _, what = name.partition(", ")
        if kind != "parts" or what not in ("trace tree", "compile"):
            raise NotImplementedError(f"there is no peer '{name}'")
        wrap: Any = (
            functools.partial(kitsune_mlir.trace_tree, after=2)
            if what == "trace tree"
            else functools.partial(torch.compile, dynamic=False)
        )
        other = Stepped(self.creature)
        other.parts = other.parts.each(wrap)
        return lambda given: lambda: [other(x) for x in given]


def creature(name: str, batch: int, small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    """A creature and its episode, a state a call."""
    own, latest = bodies.CREATURES[name], list[tuple[Tensor, Tensor, Tensor]]()

    def draw(source: random.Random) -> tuple[Tensor, Tensor, Tensor]:
        state = bodies.step(own, latest[0][:2], latest[0][2])[0] if latest else bodies.first_state(own, batch, source)
        latest[:] = [(*state, PUSH * torch.randn(state[0].shape))]
        return latest[0]

    return Stepped(own), draw


def environment(name: str, batch: int, together: bool, small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    """An environment of mujoco-torch and its episode."""
    if problem := mujoco_steps.available():
        raise ImportError(problem)
    made = mujoco_steps.Environment(name, batch, together)
    episode: list[Callable[[], Any]] = []

    def draw(source: random.Random) -> Any:
        if not episode:
            episode.append(mujoco_steps.rollout(mujoco_steps.Environment(name, batch, together), source))
        return episode[0]()

    return made, draw


def cases(batches: tuple[int, ...]) -> dict[str, Net]:
    """All of them, by name."""
    found = {}
    for batch in batches:
        for name in bodies.CREATURES:
            found[f"bodies_{name}_{batch}"] = Net(functools.partial(creature, name, batch))
    for batch in batches:
        for name in mujoco_steps.ENVIRONMENTS:
            found[f"mujoco_{name}_{batch}"] = Net(functools.partial(environment, name, batch, batch > 1))
            if batch > 1:
                found[f"mujoco_{name}_{batch}_members"] = Net(functools.partial(environment, name, batch, False))
    return found


def main() -> int:
    """The command; the exit status is how many cases were wrong, or failed."""
    parser = parser_of(__doc__)
    parser.set_defaults(calls=20, rounds=3)
    parser.add_argument("--batch", default=",".join(map(str, BATCHES)), help="sizes, between commas")
    asked = parser.parse_args()
    asked.small = False
    if asked.device == "cuda" and not asked.peers:
        asked.peers = "; ".join((*DEFAULT["cuda"], "mjx"))
    batches = tuple(int(one) for one in asked.batch.split(","))
    return run(f"python -m bench.requests.physics --batch {asked.batch}", cases(batches), asked, lambda name: 0, NEAR)


if __name__ == "__main__":
    sys.exit(main())
