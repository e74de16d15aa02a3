"""Programs for the host as C libraries, compiled by the system's compiler and called by a program in C."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError, UnsupportedError
from kitsune_mlir.frontend.valid_rows import valid_rows
from kitsune_mlir.runtime.c_library import write_c_library

CALLER = r"""
#include "model.h"
#include <stdio.h>
#include <stdlib.h>

static void *read_all(const char *path, size_t bytes) {
  FILE *file = fopen(path, "rb");
  void *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (file == NULL || fread(data, 1, bytes, file) != bytes) exit(9);
  fclose(file);
  return data;
}

int main(int count, char **words) { /* inputs and their bytes, the result's bytes; a weight's number, file and bytes */
  void *inputs[model_inputs + 1], *result;
  model *self = model_create();
  if (model_load(self, "model.weights") != 0 || model_load(self, "model.h") != -1) return 8;
  for (int n = 0; n < model_inputs; n++) inputs[n] = read_all(words[1 + 2 * n], atol(words[2 + 2 * n]));
  int next = 1 + 2 * model_inputs;
  size_t bytes = atol(words[next]);
  result = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (count > next + 1) {
    void *weight = read_all(words[next + 2], atol(words[next + 3]));
    if (model_set_weight(self, model_weights, weight) != -1 || model_set_weight(self, 0, (char *)weight + 4) != -1) return 7;
    if (model_set_weight(self, atoi(words[next + 1]), weight) != 0) return 6;
  }
  void *missing = NULL;
  if (model_run(self, inputs, &missing) != -1) return 5;
  for (int n = 0; n < 2; n++) {
    int error = model_run(self, inputs, &result);
    if (error) return fprintf(stderr, "%s", model_message(error)), 4;
  }
  fwrite(result, 1, bytes, stdout);
  model_destroy(self);
  return 0;
}
"""


class Net(nn.Module):
    """A product, functions of the C library's, a norm that needs a buffer."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 40), nn.Linear(40, 7)

    def forward(self, x, index):
        return torch.softmax(self.outer(torch.tanh(self.inner(x)))[index], -1)


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")


def built(folder: Path) -> Path:
    (folder / "caller.c").write_text(CALLER)
    library = "cc -shared -fPIC -O2 -Wl,-Bsymbolic model.c model.o -lm -o libmodel.so"
    for command in (library.split() + ["-Wall", "-Werror"], "cc caller.c -L. -lmodel -Wl,-rpath,. -o caller".split()):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder / "caller"


def called(folder: Path, inputs, result, weight=None):
    words = []
    for n, tensor in enumerate(inputs):
        (folder / f"in{n}").write_bytes(tensor.numpy().tobytes())
        words += [f"in{n}", str(tensor.nbytes)]
    words.append(str(result.nbytes))
    if weight is not None:
        (folder / "weight").write_bytes(weight[1].numpy().tobytes())
        words += [str(weight[0]), "weight", str(weight[1].nbytes)]
    done = subprocess.run(["./caller", *words], cwd=folder, capture_output=True)
    if done.returncode:
        return done.returncode, done.stderr.decode()
    return torch.from_numpy(np.frombuffer(done.stdout, dtype=result.numpy().dtype).copy()).view(result.shape)


@needs_compiler
def test_a_program_in_c(tmp_path: Path):
    model = Net().eval()
    x, index = torch.randn(33, 12), torch.randint(33, (50,))
    program = kitsune_mlir.compile(model, (x, index), options={"threads": 1})
    program.save(tmp_path / "model.kit")
    write_c_library(kitsune_mlir.load(tmp_path / "model.kit"), tmp_path)
    assert "input 0 x: f32, 33 x 12" in (tmp_path / "model.h").read_text()
    built(tmp_path)
    want = program(x, index)
    assert torch.equal(called(tmp_path, [x, index], want), want)
    number = [weight.name for weight in program.signature.weights].index("outer.bias")
    other = torch.randn(7)
    want = program.with_weights({"outer.bias": other})(x, index)
    assert torch.equal(called(tmp_path, [x, index], want, (number, other)), want)
    with pytest.raises(KitsuneError) as caught:
        program(x, index + 33)
    assert called(tmp_path, [x, index + 33], want) == (4, str(caught.value))


@needs_compiler
def test_rows_that_a_call_counts(tmp_path: Path):
    from torch.fx.experimental.proxy_tensor import make_fx

    from kitsune_mlir.cache.compiled import kept_or_compiled
    from kitsune_mlir.frontend import traced_model
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.options import Options
    from kitsune_mlir.pipeline import compile_imported

    def function(x, w, count):
        return (valid_rows(torch.tanh(x @ w), count, 200),)

    x, w = torch.randn(200, 32), torch.randn(32, 48)
    graph = make_fx(function, None, "fake")(x, w, torch.tensor(200))
    options = Options(cache=False)
    program = kept_or_compiled(lambda: traced_model(graph), find_target("host"), options, compile_imported)
    write_c_library(program, tmp_path)
    assert "enum { CUTS = 1, COUNTS = 1 }" in (tmp_path / "model.c").read_text()
    built(tmp_path)
    for n in (1, 65, 200):
        count = torch.tensor(n)
        got = called(tmp_path, [x, w, count], program(x, w, count)[0])
        torch.testing.assert_close(got[:n], torch.tanh(x @ w)[:n])


def test_what_no_library_is_made_of(tmp_path: Path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            before = self.total.clone()
            self.total.copy_(x.sum(0))
            return before

    program = kitsune_mlir.compile(Net().eval(), (torch.randn(3, 12), torch.zeros(2, dtype=torch.int64)))
    with pytest.raises(ArgumentError, match="an identifier, not '3 models'"):
        write_c_library(program, tmp_path, "3 models")
    with pytest.raises(ArgumentError, match="code for the host"):
        write_c_library(kitsune_mlir.compile(lambda x: x, (torch.randn(3),)), tmp_path)
    changing = kitsune_mlir.compile(Counting(), (torch.randn(3, 4),))
    with pytest.raises(UnsupportedError, match="'total' is changed by a copy after the run"):
        write_c_library(changing, tmp_path)
    assert not list(tmp_path.iterdir())
