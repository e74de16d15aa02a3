"""Steps of mujoco-torch's environments (extra `physics`), unmodified, as networks for windows.

Models are those that come with the package. A state is plain tensors, put into the package's own `Data` in the call.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.requests.mjx_steps import prepared

__all__ = ["ENVIRONMENTS", "Environment", "available", "rollout"]

ENVIRONMENTS = ("ant", "halfcheetah", "humanoid", "walker2d", "hopper")
FIELDS = ("qpos", "qvel", "qacc_warmstart")

State = tuple[Tensor, ...]
"""`FIELDS` and the control, each [batch, sizes]."""


def available() -> str:
    """Why there is no mujoco-torch; empty where there is."""
    found = importlib.util.find_spec("mujoco_torch")
    return "" if found else "mujoco-torch is not installed: pip install 'kitsune-mlir[physics]'"


class Environment(nn.Module):
    """One step.

    Args:
        name: of `ENVIRONMENTS`.
        batch: how many.
        together: by `torch.vmap`, in which a loop ends with the last member's; else one after the other, each with loops of its
            own. PyTorch 2.13 runs nested loops under vmap only within torch.compile.
    """

    def __init__(self, name: str, batch: int = 1, together: bool = False):
        super().__init__()
        import mujoco  # type: ignore[import-not-found]
        import mujoco_torch  # type: ignore[import-not-found]

        path = importlib.resources.files("mujoco_torch") / "test_data" / f"{name}.xml"
        model = mujoco.MjModel.from_xml_string(path.read_text())
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self.name, self._count, self._together, self._step = name, batch, together, mujoco_torch.step
        self._model = mujoco_torch.device_put(model)
        self._data = mujoco_torch.step(self._model, mujoco_torch.device_put(data))
        if together:
            self._data = torch.stack([self._data] * batch)

    def to(self, device: Any) -> Environment:  # type: ignore[override]
        """The same on a device."""
        self._model, self._data = self._model.to(device), self._data.to(device)
        return self

    def first(self) -> State:
        """The state that the model begins in, after one step."""
        return tuple(self._each(getattr(self._data, name)).clone() for name in FIELDS)

    def control(self, noise: torch.Generator) -> Tensor:
        """A random control in [-1, 1]."""
        given = self._each(self._data.ctrl)
        return 2 * torch.rand(given.shape, generator=noise, dtype=given.dtype) - 1

    def after(self, given: State) -> State:
        """The state after a step: `FIELDS`."""
        if self._together:
            return self._fields(torch.vmap(self._one)(self._with(given)))
        members = zip(*(one.unbind() for one in given), strict=True)
        made = [self._fields(self._one(self._with(member))) for member in members]
        return tuple(torch.stack(parts) for parts in zip(*made, strict=True))

    def peer(self, name: str) -> Callable[[Any], Any]:
        """What prepares the peer of this name, for `bench.requests.window_peers`."""
        if name != "mjx":
            raise NotImplementedError(f"there is no peer '{name}'")
        return prepared(self.name, (*FIELDS, "ctrl"))

    def forward(self, given: State) -> tuple[Tensor, tuple[Any, ...] | None]:
        """Places and velocities after a step, behind each other; the path is not known from outside."""
        return torch.cat(self.after(given)[:2], -1), None

    def _one(self, data: Any) -> Any:
        return self._step(self._model, data)

    def _with(self, given: State) -> Any:
        return self._data.replace(**dict(zip((*FIELDS, "ctrl"), given, strict=True)))

    def _fields(self, data: Any) -> State:
        return tuple(getattr(data, name) for name in FIELDS)

    def _each(self, given: Tensor) -> Tensor:
        """A field of all members."""
        return given if self._together else given.expand(self._count, *given.shape)


def rollout(environment: Environment, draw: random.Random) -> Callable[[], State]:
    """Draws the states of an episode, one after the other: fresh controls, steps by PyTorch."""
    noise = torch.Generator().manual_seed(draw.randrange(1 << 30))
    latest: list[State] = []

    def next_state() -> State:
        own = environment.after(latest[0]) if latest else environment.first()
        latest[:] = [(*own, environment.control(noise))]
        return latest[0]

    return next_state
