"""Writes tile programs as text for the tests of the host target, compiles and runs them on numpy arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

from kitsune_mlir.codegen.host.compile import compile_host
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.dialects import new_context
from kitsune_mlir.runtime.host_code import HostCode
from kitsune_mlir.runtime.host_executor import HostExecutor
from test.emulators.arithmetic import DTYPES

RNG = np.random.default_rng(7)

NAMES = {np.dtype(v): k for k, v in DTYPES.items() if k != "index"}


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    """Random inputs."""
    return RNG.normal(size=shape).astype(dtype)


def tensor(shape, element: str = "f32") -> str:
    return "tensor<" + "".join(f"{s}x" for s in shape) + element + ">"


def memref(shape, element: str = "f32") -> str:
    return "memref<" + "".join(f"{s}x" for s in shape) + element + ">"


def compile_text(text: str, name: str = "program", machine: Machine | None = None) -> HostCode:
    """Compile the tile program `name` of a module's text."""
    with new_context(), ir.Location.unknown():
        return compile_host(ir.Module.parse(text), name, machine=machine)


def run_code(executor: HostExecutor, inputs, results) -> None:
    """Run on arrays; `results` are written."""
    executor.run([a.ctypes.data for a in [*inputs, *results]])


@dataclass
class Stage:
    """One task over tiles of rows of `out`; `body` computes `%r` (a tile of `out`) from `%name` of every operand.

    `tiled` operands are read by the same rows, `whole` ones entirely; `after` names stages whose same tile must be done.
    """

    name: str
    out: str
    tile: int
    body: str
    tiled: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wait_all: bool = False


@dataclass
class Rows:
    """A program of row-tiled stages over named arrays: shapes and element types by name."""

    inputs: dict[str, tuple[tuple[int, ...], str]]
    results: dict[str, tuple[tuple[int, ...], str]]
    stages: list[Stage]
    buffers: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def type_of(self, name: str) -> tuple[tuple[int, ...], str]:
        return {**self.inputs, **self.results, **self.buffers}[name]

    def tiles(self, stage: Stage) -> int:
        return -(-self.type_of(stage.out)[0][0] // stage.tile)

    def text(self) -> str:
        places, size = {}, 0
        for name, (shape, element) in self.buffers.items():
            places[name] = size
            size += -(-math.prod(shape) * np.dtype(DTYPES[element]).itemsize // 256) * 256
        size = max(size, 256)
        arguments = [f"%{n}_m: {memref(*t)}" for n, t in {**self.inputs, **self.results}.items()]
        lines = [f"func.func @program({', '.join(arguments)}, %arena: memref<{size}xi8>) attributes {{kitsune.program}} {{"]
        for name, place in places.items():
            lines.append(f"%{name}_at = arith.constant {place} : index")
            lines.append(f"%{name}_m = memref.view %arena[%{name}_at][] : memref<{size}xi8> to {memref(*self.type_of(name))}")
        for stage in self.stages:
            lines.append(
                f'%{stage.name}_s = "kitsune.make_semaphore"() {{slots = {self.tiles(stage)} : i64}} : () -> !kitsune.semaphore'
            )
        for stage in self.stages:
            lines += self._task(stage)
        return "\n".join([*lines, "return", "}"])

    def _task(self, stage: Stage) -> list[str]:
        rows = self.type_of(stage.out)[0][0]
        lines = [
            '"kitsune.task"() ({',
            "^bb0(%i: index):",
            f"%tile_rows = arith.constant {stage.tile} : index",
            f"%last_row = arith.constant {rows - stage.tile} : index",
            "%unshifted = arith.muli %i, %tile_rows : index",
            "%first = arith.minsi %unshifted, %last_row : index",
            "%zero_index = arith.constant 0 : index",
            "%one_index = arith.constant 1 : index",
            "%next = arith.addi %i, %one_index : index",
        ]
        wait = '"kitsune.wait"(%{}_s, {}, {}) {{count = 1 : i64}} : (!kitsune.semaphore, index, index) -> ()'
        for other in stage.after:
            if stage.wait_all:
                count = self.tiles(next(s for s in self.stages if s.name == other))
                lines.append(f"%{other}_all = arith.constant {count} : index")
                lines.append(wait.format(other, "%zero_index", f"%{other}_all"))
            else:
                lines.append(wait.format(other, "%i", "%next"))
        for name in stage.tiled:
            lines += self._slice(name, stage.tile, f"{name}_v")
            shape, element = self.type_of(name)
            tile = (stage.tile, *shape[1:])
            types = f"{self._slice_type(name, stage.tile)} to {tensor(tile, element)}"
            lines.append(f"%{name} = bufferization.to_tensor %{name}_v restrict : {types}")
        for name in stage.whole:
            types = f"{memref(*self.type_of(name))} to {tensor(*self.type_of(name))}"
            lines.append(f"%{name} = bufferization.to_tensor %{name}_m restrict : {types}")
        lines.append(stage.body)
        lines += self._slice(stage.out, stage.tile, "destination")
        shape, element = self.type_of(stage.out)
        lines.append(
            f"bufferization.materialize_in_destination %r in restrict writable %destination : "
            f"({tensor((stage.tile, *shape[1:]), element)}, {self._slice_type(stage.out, stage.tile)}) -> ()"
        )
        return [
            *lines,
            f'"kitsune.post"(%{stage.name}_s, %i) : (!kitsune.semaphore, index) -> ()',
            '"kitsune.yield"() : () -> ()',
            f'}}) {{sym_name = "{stage.name}", grid = array<i64: {self.tiles(stage)}>, engine = "generic"}} : () -> ()',
        ]

    def _slice_type(self, name: str, tile: int) -> str:
        shape, element = self.type_of(name)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return memref((tile, *shape[1:]), f"{element}, strided<{strides}, offset: ?>")

    def _slice(self, name: str, tile: int, to: str) -> list[str]:
        shape, element = self.type_of(name)
        offsets = ", ".join(["%first"] + ["0"] * (len(shape) - 1))
        sizes = [tile, *shape[1:]]
        ones = [1] * len(shape)
        types = f"{memref(shape, element)} to {self._slice_type(name, tile)}"
        return [f"%{to} = memref.subview %{name}_m[{offsets}] {sizes} {ones} : {types}"]

    def compile(self, machine: Machine | None = None) -> HostCode:
        return compile_text(self.text(), machine=machine)

    def run(self, *inputs: np.ndarray, machine: Machine | None = None) -> list[np.ndarray]:
        """Compile and run once; returns the results."""
        executor = HostExecutor(self.compile(machine))
        results = [np.zeros(shape, DTYPES[element]) for shape, element in self.results.values()]
        run_code(executor, inputs, results)
        return results


def one_task(
    body: str, inputs: dict[str, np.ndarray], result: tuple[tuple[int, ...], str], machine: Machine | None = None
) -> np.ndarray:
    """Run a body on whole arrays as a program of one tile; `%r` is the result, `%name` are the inputs."""
    types = {n: (a.shape, NAMES[a.dtype]) for n, a in inputs.items()}
    stage = Stage("only", "result", result[0][0] if result[0] else 1, body, whole=tuple(inputs))
    return Rows(types, {"result": result}, [stage]).run(*inputs.values(), machine=machine)[0]


def elementwise(name: str, shape, operands: list[tuple[str, str, str]], body: str, element: str = "f32") -> str:
    """`%name` = a map over `shape`; operands are (name, tensor type, results of its map); `%a0`, ... are the elements."""
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    maps = [f"affine_map<({dims}) -> ({m})>" for _, _, m in operands] + [f"affine_map<({dims}) -> ({dims})>"]
    kinds = ", ".join(['"parallel"'] * len(shape))
    arguments = ", ".join([f"%a{i}: {t.rstrip('>').split('x')[-1].split('<')[-1]}" for i, (_, t, _) in enumerate(operands)])
    ins = f"ins({', '.join('%' + n for n, _, _ in operands)} : {', '.join(t for _, t, _ in operands)})" if operands else ""
    return f"""%{name}_e = tensor.empty() : {tensor(shape, element)}
%{name} = linalg.generic {{indexing_maps = [{", ".join(maps)}], iterator_types = [{kinds}]}} {ins}
  outs(%{name}_e : {tensor(shape, element)}) {{
^bb0({arguments + ", " if arguments else ""}%before: {element}):
{body}
}} -> {tensor(shape, element)}
"""


def fill(name: str, shape, value: str, element: str = "f32") -> str:
    """`%name` = a constant tensor."""
    return f"%{name}_c = arith.constant {value} : {element}\n" + elementwise(
        name, shape, [], f"linalg.yield %{name}_c : {element}", element
    )


def generic(
    name: str, dims: str, kinds: str, operands: list[tuple[str, str, str]], start: tuple[str, str, str], body: str
) -> str:
    """`%name` = a reduction into `start`; `kinds` has a letter (p or r) for each dimension, `%acc` is the value so far."""
    maps = ", ".join(f"affine_map<({dims}) -> ({m})>" for _, _, m in [*operands, start])
    types = [t.rstrip(">").split("x")[-1].split("<")[-1] for _, t, _ in [*operands, start]]
    arguments = ", ".join([f"%a{i}: {t}" for i, t in enumerate(types[:-1])] + [f"%acc: {types[-1]}"])
    iterators = ", ".join('"parallel"' if k == "p" else '"reduction"' for k in kinds)
    return f"""%{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
  ins({", ".join("%" + n for n, _, _ in operands)} : {", ".join(t for _, t, _ in operands)}) outs(%{start[0]} : {start[1]}) {{
^bb0({arguments}):
{body}
}} -> {start[1]}
"""


def product(name: str, a: str, b: str, m: int, k: int, n: int, transposed: bool = True, element: str = "f32") -> str:
    """`%name` = a[m, k] times b ([n, k] where `transposed`, else [k, n]), accumulated in f32 (f64, integers: as they are)."""
    total = "f32" if element in ("bf16", "f16") else element
    narrow = total != element
    zero, mul, add = ("0", "arith.muli", "arith.addi") if element[0] == "i" else ("0.0", "arith.mulf", "arith.addf")
    widen = f"%x = arith.extf %a0 : {element} to {total}\n%y = arith.extf %a1 : {element} to {total}\n" if narrow else ""
    x, y = ("%x", "%y") if narrow else ("%a0", "%a1")
    body = f"{widen}%p = {mul} {x}, {y} : {total}\n%s = {add} %acc, %p : {total}\nlinalg.yield %s : {total}"
    second = (b, tensor((n, k), element), "n, k") if transposed else (b, tensor((k, n), element), "k, n")
    start = (f"{name}_z", tensor((m, n), total), "m, n")
    return fill(f"{name}_z", (m, n), zero, total) + generic(
        name, "m, n, k", "ppr", [(a, tensor((m, k), element), "m, k"), second], start, body
    )
