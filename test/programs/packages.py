"""Packages to damage: a small one for each target, ways to damage it, and ways to make it anew with digests that are right."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir
from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.package import DIGEST, MANIFEST

__all__ = ["Damage", "Net", "altered", "call", "edited", "loaded", "members_of", "package", "signed", "zipped"]

ODD = [
    *(None, True, -1, 0, 1, 7, 1 << 40, 1 << 70, 10**4000, 0.5, 1e308, float("nan")),
    *("", "f32", "x", "\ud800", [], {}, [[]], [0], {"a": 1}),
]
"""Values that stand in for others in JSON."""


class Net(torch.nn.Module):
    """A package with all that a signature can hold but orders: keywords, fixed values, aliases, a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(24, 12)
        self.register_buffer("count", torch.zeros(1))
        self.shift = torch.nn.Parameter(torch.randn(12))

    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor], times: int = 2, *, scale: torch.Tensor) -> Any:
        self.count.add_(1.0)
        y = torch.relu(self.linear(x)) * scale + self.shift
        return {"y": y * times, "rows": x.sum(1) + pair["a"] - pair["b"], "x": x, "n": 3}


def call() -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call, the same ones each time."""
    some = torch.Generator().manual_seed(0)
    x, a, b, scale = (torch.randn(*shape, generator=some) for shape in ((7, 24), (7,), (7,), (12,)))
    return (x, {"a": a, "b": b}, 2), {"scale": scale}


@functools.cache
def package(target: str) -> bytes:
    """The package of a `Net` for a target."""
    torch.manual_seed(1)
    args, kwargs = call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.kit"
        kitsune_mlir.compile(Net().requires_grad_(False), args, kwargs, target=target).save(path)
        return path.read_bytes()


def members_of(data: bytes) -> dict[str, bytes]:
    """What a zip holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: dict[str, bytes] | list[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of members, whatever their names are."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", kind) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, data in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, data)
    return stream.getvalue()


def signed(members: dict[str, bytes], manifest: Any = None) -> bytes:
    """A package of these members with digests made anew, as whoever alters one on purpose makes them."""
    rest = {name: data for name, data in members.items() if name not in (MANIFEST, DIGEST)}
    manifest = json.loads(members[MANIFEST]) if manifest is None else manifest
    if isinstance(manifest, dict) and isinstance(manifest.get("members"), dict):
        listed = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in rest.items()}
        manifest = manifest | {"members": listed}
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    return zipped({MANIFEST: text, DIGEST: hashlib.sha256(text).hexdigest().encode(), **rest}, zipfile.ZIP_STORED)


def loaded(path: Path, data: bytes) -> Any:
    """The program of a package, or None where it is refused; any other error is the test's."""
    path.write_bytes(data)
    try:
        return kitsune_mlir.load(path)
    except PackageError as error:
        assert str(error).startswith(str(path)) and len(str(error)) < len(str(path)) + 400, str(error)
        return None


def edited(package: bytes, *path: Any, value: Any, inside: str | None = None) -> bytes:
    """The package with one value of its manifest, or of a JSON member, replaced (a function of it: by what that gives)."""
    members = members_of(package)
    data = json.loads(members[inside or MANIFEST])
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value(at[path[-1]]) if callable(value) else value
    if inside is not None:
        members[inside] = json.dumps(data).encode()
    return signed(members, data if inside is None else None)


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in plain data."""
    for key in data if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from places(data[key])


def altered(text: bytes, rng: random.Random) -> bytes:
    """JSON with one value replaced, gone, moved elsewhere, or one too many."""
    data = json.loads(text)
    place, key = rng.choice(list(places(data)))
    match rng.randrange(5):
        case 0 if isinstance(place, dict):
            place[rng.choice(("more", "0", "\ud800"))] = rng.choice(ODD)
        case 1:
            del place[key]
        case 2:
            other, there = rng.choice(list(places(json.loads(text))))
            place[key] = other[there]
        case _:
            place[key] = rng.choice(ODD)
    try:
        return json.dumps(data).encode()
    except ValueError:  # Python itself writes no number of so many digits
        return json.dumps(data, default=str).encode()


class Damage:
    """Ways in which a file is damaged: each takes the package and a source of random numbers, and gives bytes."""

    @staticmethod
    def flipped(data: bytes, rng: random.Random) -> bytes:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 8))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(changed)

    @staticmethod
    def replaced(data: bytes, rng: random.Random) -> bytes:
        at, length = rng.randrange(len(data)), rng.choice((1, 4, 64, 1024))
        filling = rng.choice((b"\0" * length, b"\xff" * length, rng.randbytes(length), data[:length]))
        return data[:at] + filling[: len(data) - at] + data[at + length :]

    @staticmethod
    def cut_short(data: bytes, rng: random.Random) -> bytes:
        return data[: rng.randrange(len(data))]

    @staticmethod
    def inserted(data: bytes, rng: random.Random) -> bytes:
        at, length = rng.choice((0, len(data), rng.randrange(len(data)))), rng.choice((1, 2, 16, 300))
        return data[:at] + rng.randbytes(length) + data[at:]

    @staticmethod
    def removed(data: bytes, rng: random.Random) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + data[at + rng.choice((1, 2, 16, 300)) :]

    @staticmethod
    def directory(data: bytes, rng: random.Random) -> bytes:
        """A field of the zip's directory, or of its end."""
        first = data.index(b"PK\1\2")
        changed = bytearray(data)
        at = rng.randrange(first, len(data) - 8)
        size = rng.choice((1, 2, 4, 8))
        changed[at : at + size] = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size)))
        return bytes(changed)

    @staticmethod
    def local_header(data: bytes, rng: random.Random) -> bytes:
        """A field of a member's own header."""
        places = [at for at in range(len(data)) if data[at : at + 4] == b"PK\3\4"]
        changed = bytearray(data)
        changed[rng.choice(places) + rng.randrange(46)] = rng.randrange(256)
        return bytes(changed)

    @staticmethod
    def member(data: bytes, rng: random.Random) -> bytes:
        """Bytes of a member, with a checksum that is right: nothing but a digest finds it."""
        members = members_of(data)
        name = rng.choice([MANIFEST, MANIFEST, MANIFEST, *members])
        changed = bytearray(members[name])
        at = rng.randrange(len(changed))
        if name == MANIFEST and rng.random() < 0.5:  # a digit: of a shape, an index, a position
            at = rng.choice([n for n, byte in enumerate(changed) if chr(byte).isdigit()])
            changed[at] = ord("0") + (changed[at] - ord("0") + rng.randrange(1, 10)) % 10
        else:
            changed[at] ^= 1 << rng.randrange(8)
        return zipped(members | {name: bytes(changed)}, zipfile.ZIP_STORED)

    @staticmethod
    def value(data: bytes, rng: random.Random) -> bytes:
        """A value in a member that is JSON, with a checksum that is right."""
        members = members_of(data)
        name = rng.choice([name for name in members if name.endswith(".json")])
        return zipped(members | {name: altered(members[name], rng)}, zipfile.ZIP_STORED)

    @staticmethod
    def size(data: bytes, rng: random.Random) -> bytes:
        """A member that is cut short or longer, in a zip that says so."""
        members = members_of(data)
        name = rng.choice(list(members))
        damage = rng.choice((Damage.cut_short, Damage.inserted, Damage.removed))
        return zipped(members | {name: damage(members[name], rng)}, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))

    @staticmethod
    def set_of_members(data: bytes, rng: random.Random) -> bytes:
        """A member that is gone, twice there, called otherwise, another's, or one too many; or all in another compression."""
        members = list(members_of(data).items())
        at, other = rng.sample(range(len(members)), 2)
        name, content = members[at]
        match rng.randrange(7):
            case 0:
                del members[at]
            case 1:
                members.insert(rng.randrange(len(members)), (name, rng.choice((content, members[other][1]))))
            case 2:
                members[at] = (rng.choice(("../" + name, "/" + name, name + "/", name.upper(), name + "\0x")), content)
            case 3:
                members[at], members[other] = (name, members[other][1]), (members[other][0], content)
            case 4:
                members.append((rng.choice(("ir/more", "code/../x", "code/host2.o", "x" * 60000)), b"more"))
            case 5:
                rng.shuffle(members)
            case _:
                return zipped(members, rng.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED)))
        return zipped(members, zipfile.ZIP_STORED)
