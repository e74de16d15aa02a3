"""Whole programs on disk, by what they are compiled of: the exported graph, options, target, and all versions.

A program is a package (`runtime/package.py`) with what its compilation had to say. Weights are the model's own and are not
stored, but for constants that import has made.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch.utils import _pytree as pytree

from kitsune_mlir.cache.sources import sources
from kitsune_mlir.cache.store import Store
from kitsune_mlir.codegen.gpu.backend.cubin_cache import assembler_version
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.frontend import ExportedModel, ImportedModel
from kitsune_mlir.frontend.graph_text import graph_text, imported_text
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.passmanager.diagnostics import Diagnostic
from kitsune_mlir.runtime.host_code import host_cpu
from kitsune_mlir.runtime.package import Contents, read_package, write_package
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.runners import make_runner
from kitsune_mlir.runtime.signature import Signature, Weight
from kitsune_mlir.runtime.structure import structure_text

__all__ = ["Kept", "ProgramCache", "Source", "source_of", "versions"]

KIND = "programs"
NOTES = "kept"
"""What of a stored summary is for this module."""

PACKAGES = ("torch", "torch-mlir", "llvmlite", "nvidia-nvvm", "scipy", "numpy")

NOT_IN_KEY = {"threads", "on_remark", "on_phase", "reproducer_dir", "tune_seconds", "cache", "cache_dir"}
"""Options that do not change the code."""

MOST_CONSTANTS = 256 << 20
"""Bytes of constants from which on a program is not kept."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A program that was compiled before, and the remarks that were made then."""

    program: Program
    remarks: tuple[Diagnostic, ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """What a program is compiled of.

    Attributes:
        text: all that the compiler reads of it; None where that cannot be said.
        weights: its tensors by name.
        own: names of those that any other source with the same text has too, and that are not stored.
        specs: how arguments and output are nested.
        parameters: names of the positional arguments.
    """

    text: str | None
    weights: Mapping[str, Any]
    own: Set[str]
    specs: tuple[Any, Any]
    parameters: tuple[str, ...]


def source_of(model: ExportedModel | ImportedModel) -> Source:
    """What a program of a model is compiled of."""
    if isinstance(model, ImportedModel):
        supplied = model.supplied
        return Source(imported_text(model), supplied, supplied.keys(), (model.in_spec, model.out_spec), model.parameters)
    program = model.program
    own = {*program.state_dict, *program.graph_signature.buffers}
    specs = (program.call_spec.in_spec, program.call_spec.out_spec)
    return Source(graph_text(model), {**program.constants, **program.state_dict}, own, specs, model.parameters)


class ProgramCache:
    """Programs that were compiled for a machine with the same options.

    Args:
        settled: options as they are where the user leaves them to the framework's settings.
    """

    def __init__(self, store: Store, machine: Target, options: Options, settled: Mapping[str, Any]):
        self._store, self._machine, self._options = store, machine, options
        self._settled = dict(settled)

    def key(self, source: Source) -> str | None:
        """What the program of a source is kept under; None where that cannot be said, or depends on measurements."""
        options = self._options
        if options.tune or options.tuned_for or source.text is None:
            return None
        chosen = {f.name: getattr(options, f.name) for f in dataclasses.fields(options) if f.name not in NOT_IN_KEY}
        chosen |= self._settled | {"passes": dict(options.passes)}
        code = assembler_version() if self._machine.is_gpu else host_cpu()
        parts = [repr(self._machine), repr(sorted(chosen.items())), repr(code), versions(self._store), source.text]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def find(self, key: str, source: Source) -> Kept | None:
        """The program, with the source's weights; None if there is none, or if it was compiled without remarks, and these are
        asked for."""
        path = self._store.get(KIND, key)
        if path is None:
            return None
        try:
            held = read_package(path, own=True)
            notes = held.summary.pop(NOTES)
            remarks = None if notes["remarks"] is None else tuple(record(Diagnostic, r, "a remark") for r in notes["remarks"])
        except OSError:
            return None
        except (KitsuneError, ValueError, KeyError, TypeError):
            self._store.remove(KIND, key)
            return None
        if remarks is None and self._options.on_remark is not None:
            return None
        stored = {name: tensor.to(notes["devices"][name]) for name, tensor in held.weights.items()}
        weights = {
            w.name: stored[w.name] if w.name in stored else source.weights[w.name].detach() for w in held.signature.supplied
        }
        signature = dataclasses.replace(
            held.signature,
            weights=tuple(dataclasses.replace(w, kind=notes["kinds"][w.name]) for w in held.signature.weights),
            sources=tuple(dataclasses.replace(w, kind=notes["kinds"][w.name]) for w in held.signature.sources),
            in_spec=_dumped(source.specs[0]),
            out_spec=_dumped(source.specs[1]),
            parameters=source.parameters,
        )
        runner, problem = make_runner(held.target, held.artifacts, self._options.threads)
        parts = (held.target, signature, weights, runner, held.ir, held.summary, held.artifacts)
        program = Program(*parts, runner_error=problem, specs=source.specs)
        return Kept(program, remarks or ())

    def keep(self, key: str, program: Program, source: Source, remarks: Sequence[Diagnostic] | None) -> None:
        """Keep a program, if a file can hold it."""
        constants = {w.name: program.weights[w.name] for w in program.signature.supplied if w.name not in source.own}
        if sum(tensor.nbytes for tensor in constants.values()) > MOST_CONSTANTS:
            return
        notes = {
            "remarks": None if remarks is None else [dataclasses.asdict(remark) for remark in remarks],
            "devices": {name: str(tensor.device) for name, tensor in constants.items()},
            "kinds": {w.name: w.kind for w in (*program.signature.weights, *program.signature.sources)},
        }
        summary = {**program.summary, NOTES: notes}
        signature = _stored(program.signature, constants)
        texts = {level: program.ir(level) for level in program.levels}
        try:
            held = Contents(program.target, signature, summary, texts, program.artifacts, constants)
            self._store.put(KIND, key, lambda path: write_package(path, held, quick=True))
        except (KitsuneError, ValueError, TypeError, NotImplementedError, RuntimeError):
            return  # it cannot be written down


def _stored(signature: Signature, constants: Mapping[str, Any]) -> Signature:
    """With plain lists of leaves as structures, and as parameters what the model supplies when its program is found."""
    count = len([output for output in signature.outputs if output.mutates is None])
    leaves = max([0, *(i.position + 1 for i in signature.inputs), *(position + 1 for position, _ in signature.fixed)])
    specs = (pytree.tree_structure(((0,) * leaves, {})), pytree.tree_structure((0,) * count))

    def stored(weight: Weight) -> Weight:
        return weight if weight.recipe or weight.name in constants else dataclasses.replace(weight, kind="parameter")

    return dataclasses.replace(
        signature,
        weights=tuple(map(stored, signature.weights)),
        sources=tuple(map(stored, signature.sources)),
        in_spec=structure_text(specs[0]),
        out_spec=structure_text(specs[1]),
    )


def _dumped(spec: Any) -> str:
    try:
        return structure_text(spec)
    except NotImplementedError:
        return ""


def versions(store: Store | None = None) -> str:
    """Of all that takes part in making a program; of this project the sources themselves, which `store` may know."""
    return "\n".join([*_packages(), sources(store)])


@functools.cache
def _packages() -> list[str]:
    return [f"{name} {_version(name)}" for name in PACKAGES]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
