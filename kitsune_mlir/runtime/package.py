"""`.kit` files: a zip of a manifest, IR texts, code and weights (safetensors).

    manifest.json           format, target, signature, summary, and bytes and SHA-256 of every other member
    manifest.sha256         SHA-256 of manifest.json, in hexadecimal digits
    ir/LEVEL                texts, for people and for `kitsune simulate`
    code/NAME               what a runner's `artifacts` gave
    weights.safetensors     the stored weights

Reading executes nothing of it, imports no module that it names, and unpacks no more than the file can hold; no pickle. The
digests find every accidental change. What they cannot find is a purpose: whoever writes a file also writes its digests. So a
program's code is as trustworthy as where the file comes from, as a shared library is: loading a program for the host links its
object code into the process. What can be checked is, whatever the digests say: the signature fits the code's own description
of its arguments, the stored weights fit the signature, and the tables of an object file fit each other (not its instructions).

The format is a number, and a reader reads its own one only: a package is made from a model in seconds, and a file of another
format is refused by its number. The host's code takes several requests since format 4. Format 3 says what a run reads and
writes, which results lie where arguments do, and how weights are computed from others; format 2 had nothing of that, and
format 1 no digest of the manifest and no sizes of the code's arguments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.archive import Archive, archive_bytes, readable, write_archive
from kitsune_mlir.runtime.explain import explain_text
from kitsune_mlir.runtime.plain import shown
from kitsune_mlir.runtime.signature import Signature
from kitsune_mlir.runtime.signature_check import check_accesses, check_fit, check_signature, check_weights

__all__ = [
    "LEVELS",
    "WEIGHTS",
    "Contents",
    "manifest_of",
    "members_of",
    "package_bytes",
    "read_package",
    "sealed",
    "write_package",
]

LEVELS = ("linalg", "stages", "tiles", "gpu", "llvm", "ptx")
FORMAT = 4
MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
WEIGHTS = "weights.safetensors"
MEMBER = re.compile(rf"ir/({'|'.join(LEVELS)})|code/\w+\.\w+|programs/\d+\.kit|{re.escape(WEIGHTS)}", re.ASCII)
KINDS = {"target": str, "signature": dict, "summary": dict, "members": dict}


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a package holds.

    Attributes:
        target, signature, summary: as `Program` has them.
        ir, artifacts: texts by level, and the code's files.
        weights: those that are stored.
    """

    target: str
    signature: Signature
    summary: Mapping[str, Any]
    ir: Mapping[str, str]
    artifacts: Mapping[str, bytes]
    weights: Mapping[str, Any]


def write_package(path: str | os.PathLike[str], held: Contents, quick: bool = False) -> None:
    """Write a package; see `Program.save`.

    Args:
        quick: compress less, in a third of the time, and leave it to the reader to find out whether the parts fit together.
    """
    write_archive(path, _members_of(held, checked=not quick), stored=WEIGHTS, level=1 if quick else None)


def package_bytes(held: Contents) -> bytes:
    """What `write_package` writes quickly."""
    return archive_bytes(_members_of(held), stored=WEIGHTS, level=1)


def _members_of(held: Contents, checked: bool = True) -> dict[str, bytes]:
    """All members of a package, whose parts fit together if they are `checked`."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.weights.items()}
    members: dict[str, bytes] = {f"ir/{level}": text.encode() for level, text in held.ir.items()}
    members |= {f"code/{name}": data for name, data in held.artifacts.items()}
    members[WEIGHTS] = save(tensors)
    manifest = {"target": held.target, "signature": held.signature.to_dict(), "summary": dict(held.summary)}
    found = sealed(manifest, members, indented=checked)
    if not checked:
        return found
    with readable("the program does not fit into a package"):  # rather now than when it is needed
        _check(held.target, _signature(json.loads(found[MANIFEST])["signature"]), held.artifacts, tensors)
    return found


def sealed(manifest: Mapping[str, Any], members: Mapping[str, bytes], indented: bool = True) -> dict[str, bytes]:
    """Members of a package, with its manifest, on lines for people or `indented` not, and the digests of all.

    Python writes lines of JSON by an encoder that takes five times as long.
    """
    listed = {name: {"bytes": len(data), "sha256": _digest(data)} for name, data in members.items()}
    text = json.dumps({"format": FORMAT, **manifest, "members": listed}, indent=1 if indented else None).encode()
    return {MANIFEST: text, DIGEST: _digest(text).encode(), **members}


def read_package(source: str | os.PathLike[str] | bytes, name: str | None = None, own: bool = False) -> Contents:
    """Read a package.

    Args:
        source: its path, or its bytes.
        name: what it is called in messages, where that is not the path.
        own: it lies where only this project writes, or was read before: what its weights' recipes give is not computed.

    Raises:
        OSError, PackageError: as `load`.
    """
    path = name or ("a package" if isinstance(source, bytes) else source)
    with Archive(source, name) as archive:
        manifest = manifest_of(archive, path, KINDS)
        members = members_of(archive, manifest["members"], path)
    artifacts = {name.removeprefix("code/"): data for name, data in members.items() if name.startswith("code/")}
    with readable(f"{path}: damaged package"):
        from safetensors.torch import load as load_tensors

        texts = {name.removeprefix("ir/"): data.decode() for name, data in members.items() if name.startswith("ir/")}
        signature, target, summary = _signature(manifest["signature"], own), manifest["target"], manifest["summary"]
        stored = load_tensors(members[WEIGHTS])
        _check(target, signature, artifacts, stored)
        explain_text(summary)
    return Contents(target, signature, summary, texts, artifacts, stored)


def manifest_of(archive: Archive, path: str | os.PathLike[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The manifest, of this format and as it was written, which has these entries.

    Raises:
        OSError, PackageError: as `read_package`.
    """
    if MANIFEST not in archive.sizes:
        raise PackageError(f"{path}: a zip, but no .kit file (it has no {MANIFEST})")
    text = archive.read(MANIFEST)
    with readable(f"{path}: {MANIFEST} was altered: it is no JSON"):
        manifest = json.loads(text)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        again = "; compile the model again" if type(found) is int and 0 < found < FORMAT else ""
        raise PackageError(f"{path}: package format {shown(found)}, this version reads {FORMAT}{again}")
    if archive.read(DIGEST) != _digest(text).encode():
        raise PackageError(f"{path}: {MANIFEST} was altered (its SHA-256 differs from that in {DIGEST})")
    if set(manifest) != {"format", *kinds} or any(type(manifest[name]) is not kind for name, kind in kinds.items()):
        raise PackageError(f"{path}: {MANIFEST} has the entries {shown(manifest)}")
    return manifest


def members_of(archive: Archive, listed: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, bytes]:
    """All other members, as they were written.

    Raises:
        OSError, PackageError: as `read_package`.
    """
    for name in set(archive.sizes) - {MANIFEST, DIGEST} - set(listed):
        raise PackageError(f"{path}: member {shown(name)} is not in the manifest")
    members: dict[str, bytes] = {}
    for name, entry in listed.items():
        if not MEMBER.fullmatch(name):
            raise PackageError(f"{path}: the manifest names a member {shown(name)}, which packages have not")
        if type(entry) is not dict or set(entry) != {"bytes", "sha256"}:
            raise PackageError(f"{path}: the manifest says {shown(entry)} of member '{name}'")
        if name in archive.sizes and archive.sizes[name] != entry["bytes"]:
            raise PackageError(f"{path}: member '{name}' was altered ({archive.sizes[name]} bytes for {shown(entry['bytes'])})")
        members[name] = archive.read(name)
        if _digest(members[name]) != entry["sha256"]:
            raise PackageError(f"{path}: member '{name}' was altered (its SHA-256 differs from the manifest's)")
    if WEIGHTS not in members:
        raise PackageError(f"{path}: member '{WEIGHTS}' is missing")
    return members


def _signature(data: Any, own: bool = False) -> Signature:
    """The signature in a manifest; ValueError where it is none or contradicts itself."""
    signature = Signature.from_dict(data)
    try:
        check_signature(signature, own)
    except ValueError as error:
        raise ValueError(f"its signature contradicts itself: {error}") from error
    return signature


def _check(target: str, signature: Signature, artifacts: Mapping[str, bytes], stored: Mapping[str, Any]) -> None:
    """The signature fits code and weights; raises ValueError where it does not."""
    inputs = len(signature.weights) + len(signature.inputs)
    if not artifacts:
        if not re.fullmatch(r"host|sm_\d+a?", target):
            raise ValueError(f"there is no target {shown(target)}")
        if signature.results:
            raise ValueError(f"its signature has {len(signature.results)} results, and there is no code that computes them")
        sizes = []
    elif target == "host":
        from kitsune_mlir.runtime.host_runner import HostRunner

        code = HostRunner.read_code(artifacts)
        sizes = [(code.argument_bytes[:inputs], code.argument_bytes[inputs:], code.overwrites)]
    else:
        from kitsune_mlir.runtime.cuda_runner import CudaRunner

        kernels = [manifest for manifest, _ in CudaRunner.read_kernels(artifacts)]
        for kernel in kernels:
            if kernel.chip != target:
                raise ValueError(f"it is for the target {shown(target)}, and its code for '{kernel.chip}'")
        sizes = {(kernel.input_bytes, kernel.result_bytes, kernel.overwrites): None for kernel in kernels}  # mostly one
    try:
        for each in sizes:
            check_fit(signature, *each)
    except ValueError as error:
        raise ValueError(f"its signature does not fit its code: {error}") from error
    check_weights(signature, stored)
    try:
        check_accesses(signature)
    except ValueError as error:
        raise ValueError(f"its accesses contradict its signature: {error}") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
