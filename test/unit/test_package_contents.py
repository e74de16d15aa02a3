"""What a `.kit` file holds is checked, whatever its digests say: what contradicts itself or its code is refused."""

import dataclasses
import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, PackageError
from kitsune_mlir.runtime.object_check import HEADER, SECTION, check_object
from kitsune_mlir.runtime.package import MANIFEST, WEIGHTS
from kitsune_mlir.runtime.signature import Input, Output, Signature, Weight
from test.programs.packages import Damage, Net, altered, edited, loaded, members_of, package, signed


@pytest.fixture(params=["host", "sm_90a"])
def data(request: pytest.FixtureRequest) -> bytes:
    """A package for each target."""
    return package(request.param)


def test_signatures_are_read_as_they_were_written() -> None:
    """Wide extents and orders too; lists of numbers come back as tuples."""
    signature = Signature(
        (Weight("w", "parameter", (3, 5), "bf16", (), (4, 8)), Weight("v", "buffer", (2, 3, 4), "f32", (0, 2, 1))),
        (Input("x", 1, (3, 5), "i64", (1, 0)),),
        (Output("tensor", (3,), "f32", 0), Output("alias", (3, 5), "i64", argument="x"), Output("python", value=2.5)),
        (((3,), "f32"),),
        ((0, None), (2, 1.5)),
        "in",
        "out",
        {0: (0,)},
    )
    again = Signature.from_dict(json.loads(json.dumps(signature.to_dict())))
    assert again == signature and repr(again) == repr(signature)


def named(value: Any) -> str:
    """A parameter in a test's name."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else repr(value)[:20]


CONTRADICTIONS = [
    (("signature", "weights", 1, "shape", 0), 13, "'linear.weight' is f32 [13, 24], 1248 bytes, and the code's has 1152"),
    (("signature", "weights", 1, "dtype"), "f16", "'linear.weight' is f16 [12, 24], 576 bytes, and the code's has 1152"),
    (("signature", "weights", 1, "dtype"), "f31", "no torch dtype for element type 'f31'"),
    (("signature", "weights", 1, "kind"), "input", "'linear.weight' is a 'input', none of parameter, buffer, constant"),
    (("signature", "weights", 1, "name"), "shift", "argument 'shift' occurs 2 times"),
    (("signature", "weights", 1, "name"), "other", "the stored weight 'linear.weight' is none of the program's"),
    (("signature", "weights", 1, "order"), [0, 0], "'linear.weight' has an order (0, 0) of 2"),
    (("signature", "weights", 1, "order"), [0], "'linear.weight' has an order (0,) of 2"),
    (("signature", "weights", 1, "wide"), [12, 23], "'linear.weight' of [12, 24] is to be widened to [12, 23]"),
    (("signature", "weights", 1, "wide"), [12, 32], "'linear.weight' is f32 [12, 32], 1536 bytes, and the code's has 1152"),
    (
        ("signature", "weights", 1, "shape"),
        [24, 12],
        "the stored weight 'linear.weight' is torch.float32 [12, 24]",
    ),
    (("signature", "weights", 1, "shape", 0), -12, "'linear.weight' has the shape [-12, 24]"),
    (("signature", "weights", 1, "shape", 0), 12.0, "number 0 in 'shape' of number 1 in 'weights' of the signature is 12.0"),
    (("signature", "weights", 1, "shape", 0), True, "is True, where a whole number was expected"),
    (("signature", "weights", 1, "shape", 0), 10**400, "has the shape"),
    (("signature", "weights", 1, "more"), 1, "has an unknown entry 'more'"),
    (("signature", "weights"), {}, "'weights' of the signature is {}, where a list was expected"),
    (("signature", "weights"), lambda all_: all_[1:], "its code: "),
    (("signature", "inputs", 0, "position"), 1, "leaf 1 of the arguments occurs 2 times"),
    (("signature", "inputs", 0, "position"), 5, "it names leaf 5 of 5 of the arguments"),
    (("signature", "inputs", 0, "position"), -1, "it names leaf -1 of 5 of the arguments"),
    (("signature", "inputs", 0, "order"), [1, 2], "input 'x' has an order (1, 2) of 2"),
    (("signature", "inputs", 0, "name"), None, "'name' of number 0 in 'inputs' of the signature is None"),
    (("signature", "fixed"), [], "it names 4 of 5 leaves of the arguments"),
    (("signature", "fixed", 0, 1), [1], "leaf 3 of the arguments is [1], no plain value"),
    (("signature", "outputs", 0, "index"), 7, "output 0 is result 7, of 3"),
    (("signature", "outputs", 0, "index"), -1, "output 0 is result -1, of 3"),
    (("signature", "outputs", 0, "index"), None, "output 0 is of kind tensor and does not say of what"),
    (("signature", "outputs", 0, "index"), 2, "output 0 is f32 [7, 12], and what it is made of is f32 [7]"),
    (("signature", "outputs", 0, "kind"), "tenser", "output 0 is a 'tenser', none of tensor, alias, python"),
    (("signature", "outputs", 0, "kind"), "python", "result 1 is no output's"),
    (("signature", "outputs", 2, "argument"), "z", "output 2 names the argument 'z', which there is not"),
    (("signature", "outputs", 2, "argument"), "scale", "output 2 is f32 [7, 24], and what it is made of is f32 [12]"),
    (("signature", "outputs", 3, "value"), [3], "output 3 is [3], no plain value"),
    (("signature", "outputs", 4, "mutates"), "counts", "output 4 names the argument 'counts', which there is not"),
    (("signature", "outputs", 4, "mutates"), "shift", "is to overwrite 'shift', which is f32 [12]"),
    (("signature", "outputs", 4, "mutates"), None, "it has 5 outputs, and the output's structure 4"),
    (("signature", "results", 1, 0, 0), 8, "output 0 is f32 [7, 12], and what it is made of is f32 [8, 12]"),
    (("signature", "results"), lambda all_: [*all_, [[1], "f32"]], "result 3 is no output's"),
    (("signature", "result_orders"), {"1": [0, 2]}, "the order (0, 2) of result 1 is none of 2"),
    (("signature", "result_orders"), {"9": [0]}, "it gives an order of result 9, of 3"),
    (("signature", "result_orders"), {"01": [0, 1]}, "has the entry '01', where a number was expected"),
    (("signature", "accesses"), [], "no access writes"),
    (("signature", "accesses", 0, "tensor"), "other", "an access of 'other' names no tensor of its"),
    (("signature", "accesses", 0, "mode"), "reads", "is a 'reads', none of read, write, both"),
    (("signature", "accesses", 0, "mode"), "write", "is a 'write', and it is not written"),
    (("signature", "accesses", 0, "offset"), -4, "is bytes [-4,"),
    (("signature", "accesses", 0, "bytes"), 1 << 40, "is bytes [0, 1099511627776) of"),
    (("signature", "accesses", 0, "bytes"), 0, "is bytes [0, 0) of"),
    (("signature", "accesses"), lambda all_: [*all_, all_[0]], "is bytes [0,"),
    (("signature", "accesses", 0, "bytes"), "all", "where a whole number was expected"),
    (("signature", "outputs", 4, "in_place"), lambda was: not was, "in place of arguments, and the code"),
    (("signature", "outputs", 0, "in_place"), True, "output 0 is written in place of no argument"),
    (("signature", "in_spec"), "", "a structure of arguments or outputs cannot be read"),
    (("signature", "in_spec"), lambda text: text.replace("builtins.dict", "builtins.list"), "a list has the names ['a', 'b']"),
    (("signature", "in_spec"), lambda text: text.replace('\\"a\\"', '\\"b\\"'), "2 values have the names ['b', 'b']"),
    (("signature", "out_spec"), lambda text: text.replace('\\"rows\\", ', ""), "4 values have the names ['y', 'x', 'n']"),
    (("signature", "out_spec"), "[" * 5000, "a structure of arguments or outputs cannot be read"),
    (("target",), "sm_80", "damaged package: "),
    (("target",), 90, "manifest.json has the entries"),
    (("summary",), {"stages": [{"name": "x"}]}, "damaged package: KeyError"),
    (("summary",), [], "manifest.json has the entries"),
    (("more",), 1, "manifest.json has the entries"),
    (("format",), 1, "package format 1, this version reads 4; compile the model again"),
    (("format",), 5, "package format 5, this version reads 4"),
    (("format",), True, "package format True"),
    (("format",), float("nan"), "package format nan"),
]


@pytest.mark.rotated(40)
@pytest.mark.parametrize(
    ("path", "value", "words"), CONTRADICTIONS, ids=lambda v: None if isinstance(v, tuple) else str(v)[:20]
)
def test_contradictions_are_refused_whatever_the_digests_say(
    data: bytes, path: tuple[Any, ...], value: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "m.kit").write_bytes(edited(data, *path, value=value))
    with pytest.raises(PackageError) as caught:
        kitsune_mlir.load(tmp_path / "m.kit")
    assert words in str(caught.value)


KERNEL, HOST = "code/kernel.json", "code/host.json"
DESCRIPTIONS = [
    (KERNEL, ("input_bytes", 0), 1156, "the code's has 1156"),
    (KERNEL, ("result_bytes",), [4, 336], "parameters are"),
    (KERNEL, ("chip",), "sm_100a", "it is for the target 'sm_90a', and its code for 'sm_100a'"),
    (KERNEL, ("parameters", 0, "index"), 1, "parameters are"),
    (KERNEL, ("parameters", 0, "kind"), "tensor_map", "parameters are"),
    (KERNEL, ("parameters", -1, "index"), 99, "describes"),
    (KERNEL, ("parameters", -1, "offset"), 1 << 40, "begins at byte"),
    (KERNEL, ("parameters", -1, "map", "dtype"), "f31", "'dtype' of tensor map"),
    (KERNEL, ("parameters", -1, "map", "shape", 0), 1 << 20, "ends at byte"),
    (KERNEL, ("parameters", -1, "map", "box"), [1], "dimensions, strides and box"),
    (KERNEL, ("parameters", -1, "map"), None, "not a mapping"),
    (KERNEL, ("threads",), 0, "'threads' is 0"),
    (KERNEL, ("threads",), "256", "'threads' of the kernel's manifest is '256'"),
    (KERNEL, ("scratch_bytes",), -1, "'scratch_bytes' is -1"),
    (KERNEL, ("tasks", 0), ["a"], "number 0 in 'tasks'"),
    (KERNEL, ("format",), 2, "not a kernel manifest of format 1"),
    (HOST, ("argument_bytes", 0), 1156, "the code's has 1156"),
    (HOST, ("argument_bytes",), lambda sizes: sizes[1:], "arguments and sizes of"),
    (HOST, ("arguments",), 3, "3 arguments and sizes of"),
    (HOST, ("control_bytes",), 60, "'control_bytes' of host.json is 60, not 132"),
    (HOST, ("arena_bytes",), 1 << 60, "'arena_bytes' of host.json is"),
    (HOST, ("name",), "a b", "the entry's name is 'a b'"),
    (HOST, ("messages",), [1], "number 0 in 'messages' of host.json is 1"),
    (HOST, ("object_file",), "", "host.json holds"),
]


@pytest.mark.rotated(16)
@pytest.mark.parametrize(
    ("member", "path", "value", "words"), DESCRIPTIONS, ids=lambda v: None if isinstance(v, tuple) or callable(v) else str(v)
)
def test_codes_own_descriptions_are_checked(
    data: bytes, member: str, path: tuple[Any, ...], value: Any, words: str, tmp_path: Path
) -> None:
    if member not in members_of(data):
        pytest.skip("a package for the other target")
    (tmp_path / "m.kit").write_bytes(edited(data, *path, value=value, inside=member))
    with pytest.raises(PackageError) as caught:
        kitsune_mlir.load(tmp_path / "m.kit")
    assert words in str(caught.value)


def test_any_value_in_a_signed_package_is_read_or_refused(data: bytes, tmp_path: Path) -> None:
    """No value of the manifest, or of the code's description, makes another error than a PackageError (or a loaded program)."""
    rng = random.Random(0)
    members = members_of(data)
    description = KERNEL if KERNEL in members else HOST
    refused = 0
    for _ in range(600):
        name = rng.choice((MANIFEST, MANIFEST, description))
        text = altered(members[name], rng)
        mutant = signed(members, text) if name == MANIFEST else signed(members | {name: text})
        refused += loaded(tmp_path / "m.kit", mutant) is None
    assert refused > 150


@pytest.mark.parametrize(
    "text",
    [b"", b"[" * 100_000, b'{"format":' * 50_000, b"\xff\xfe", b"null", b"[2]", b'{"format": ' + b"9" * 5000 + b"}", b'"\xc3"'],
    ids=lambda text: repr(text[:12]),
)
def test_texts_that_are_no_manifest(data: bytes, text: bytes, tmp_path: Path) -> None:
    assert loaded(tmp_path / "m.kit", signed(members_of(data), text)) is None


def test_weights_that_are_none(data: bytes, tmp_path: Path) -> None:
    """A damaged header of the weights under digests that are right."""
    rng, members = random.Random(1), members_of(data)
    for _ in range(60):
        weights = Damage.replaced(members[WEIGHTS], rng) if rng.random() < 0.5 else Damage.cut_short(members[WEIGHTS], rng)
        loaded(tmp_path / "m.kit", signed(members | {WEIGHTS: weights}))
    for header in (b"", b"{", b"[]", b'{"linear.weight":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'):
        assert loaded(tmp_path / "m.kit", signed(members | {WEIGHTS: struct.pack("<Q", len(header)) + header})) is None


def test_structures_import_nothing_and_call_nothing(data: bytes, tmp_path: Path) -> None:
    """pytree would import the module of a dictionary's default, or of a key that is an enum."""
    leaf = {"type": None, "context": None, "children_spec": []}
    enum = '[{"__enum__": true, "fqn": "%s:Sub", "name": "X"}]'
    default = {"default_factory_module": "antigravity", "default_factory_name": "webbrowser.open", "dict_context": ["a"]}
    nodes = [
        {"type": "builtins.dict", "context": enum % "antigravity", "children_spec": [leaf]},
        {"type": "builtins.dict", "context": (enum % "antigravity").replace("_", "\\u005f"), "children_spec": [leaf]},
        {"type": "builtins.dict", "context": enum % "os", "children_spec": [leaf]},
        {"type": "collections.defaultdict", "context": default, "children_spec": [leaf]},
        {"type": "collections.defaultdict", "context": default | {"default_factory_module": "os"}, "children_spec": [leaf]},
    ]
    for node in nodes:
        (tmp_path / "m.kit").write_bytes(edited(data, "signature", "out_spec", value=json.dumps([1, node])))
        with pytest.raises(PackageError, match="no type that is known here"):
            kitsune_mlir.load(tmp_path / "m.kit")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("keep", ["host.o", "host.ll", "host.json", "kernel.json", "kernel.cubin", ""])
def test_code_that_is_not_whole(data: bytes, keep: str, tmp_path: Path) -> None:
    """Digests are right, and a part of the code is there alone, or none."""
    members = {n: data for n, data in members_of(data).items() if not n.startswith("code/") or n == f"code/{keep}"}
    assert loaded(tmp_path / "m.kit", signed(members)) is None


def test_weights_of_the_caller_that_are_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.kit").write_bytes(data)
    with pytest.raises(ArgumentError, match="weights are a mapping from names to tensors, not a Net"):
        kitsune_mlir.load(tmp_path / "m.kit", Net())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="weight 'shift' is a list, a tensor was expected"):
        kitsune_mlir.load(tmp_path / "m.kit", {"shift": [1.0], "other": object()})


def test_what_contradicts_itself_is_not_saved(data: bytes, tmp_path: Path) -> None:
    program = loaded(tmp_path / "m.kit", data)
    program.signature = dataclasses.replace(program.signature, fixed=())
    before = (tmp_path / "m.kit").read_bytes()
    with pytest.raises(PackageError, match="the program does not fit into a package.*it names 4 of 5 leaves"):
        program.save(tmp_path / "m.kit")
    assert (tmp_path / "m.kit").read_bytes() == before and list(tmp_path.iterdir()) == [tmp_path / "m.kit"]


LINK = """
import random, sys
from pathlib import Path
from kitsune_mlir.errors import TargetError
from kitsune_mlir.runtime.host_runner import HostRunner
from kitsune_mlir.runtime.object_check import HEADER, SECTION

artifacts = {path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
whole = artifacts["host.o"]
at = HEADER.unpack_from(whole)[6]
sections = list(SECTION.iter_unpack(whole[at:]))
code = range(sections[2][4], sections[2][4] + sections[2][5])  # the instructions, which nobody can check
tables = [n for n in range(len(whole)) if n not in code]
HostRunner.from_artifacts(artifacts)
counts = {"linked": 0, "refused": 0}
for seed in range(1500):
    print(seed, file=sys.stderr)
    rng, changed = random.Random(seed), bytearray(whole)
    for place in rng.sample(tables, rng.choice((1, 1, 3))):
        changed[place] = rng.choice((0, 255, rng.randrange(256), changed[place] ^ 1 << rng.randrange(8)))
    try:
        HostRunner.from_artifacts(artifacts | {"host.o": bytes(changed[: rng.choice((None, None, None, place))])})
        counts["linked"] += 1
    except (ValueError, TargetError):
        counts["refused"] += 1
print(counts["linked"], counts["refused"])
"""


def test_object_files_whose_tables_do_not_fit_end_no_process(tmp_path: Path) -> None:
    """LLVM ends the process on one altered object file in fifteen; instructions apart, none gets so far."""
    for name, content in members_of(package("host")).items():
        if name.startswith("code/"):
            (tmp_path / name.removeprefix("code/")).write_bytes(content)
    done = subprocess.run([sys.executable, "-c", LINK, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    linked, refused = map(int, done.stdout.split())
    assert linked > 100 and refused > 500


@pytest.mark.parametrize(
    ("places", "value", "words"),
    [
        ((0,), b"MZ", "it is no ELF file of 64 bits"),
        ((16,), b"\2", "it is of type 2 for machine 62"),
        ((18,), b"\xb7", "it is of type 1 for machine 183"),
        ((40,), b"\xff\xff\xff", "its table of sections ends outside of the file"),
        ((62,), b"\0\0", "names of sections are in no table"),
        (("section", 2, 4), b"\x77", "section 2 is of the type 0x77"),
        (("section", 2, 9), b"\4", "section 2 belongs to threads"),
        (("section", 2, 32), b"\xff\xff\xff", "section 2 ends outside of the file"),
        (("section", 2, 48), b"\3", "section 2 is aligned to 3"),
    ],
)
def test_object_files_are_refused_in_words(places: tuple[Any, ...], value: bytes, words: str) -> None:
    whole = bytearray(members_of(package("host"))["code/host.o"])
    check_object(bytes(whole))
    _, number, field = places if len(places) == 3 else (0, 0, places[0])
    at = (HEADER.unpack_from(whole)[6] + number * SECTION.size if len(places) == 3 else 0) + field
    whole[at : at + len(value)] = value
    with pytest.raises(ValueError, match=f"the object file: {words}"):
        check_object(bytes(whole))
