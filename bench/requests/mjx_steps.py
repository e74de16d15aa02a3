"""Steps of MuJoCo's own simulation in JAX (MJX), as a peer of mujoco-torch's: the same models, states and controls.

Needs `mujoco-mjx` of mujoco's version, and JAX; nothing of the project depends on them. Its solver is another implementation,
so states are not compared.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

__all__ = ["prepared"]


def prepared(name: str, fields: Sequence[str]) -> Callable[[Sequence[Any]], Callable[[], list[Any]]]:
    """Of a model that comes with mujoco-torch: what makes a call of some states, each steps the whole batch and waits for it.

    Args:
        fields: names of a state's parts, each [batch, sizes].

    Raises:
        ImportError: MJX or JAX is not installed.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    import jax  # type: ignore[import-not-found]
    import mujoco  # type: ignore[import-not-found]
    from mujoco import mjx  # type: ignore[import-not-found]

    jax.config.update("jax_enable_x64", True)
    path = importlib.resources.files("mujoco_torch") / "test_data" / f"{name}.xml"
    model = mujoco.MjModel.from_xml_string(path.read_text())
    placed = mjx.put_model(model)
    blank = mjx.make_data(model)

    def step(*given: Any) -> Any:
        after = mjx.step(placed, blank.replace(**dict(zip(fields, given, strict=True))))
        return after.qpos, after.qvel

    run = jax.jit(jax.vmap(step))

    def prepare(given: Sequence[Sequence[Tensor]]) -> Callable[[], list[Any]]:
        states = [[jax.device_put(part.cpu().numpy()) for part in state] for state in given]
        jax.block_until_ready(run(*states[0]))

        def call() -> list[Any]:
            for state in states:
                jax.block_until_ready(run(*state))
            return [(None, None)] * len(states)

        return call

    return prepare
