"""Text that is generated token by token: tokens as eager's, and few programs whatever the lengths."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport

VOCABULARY, WIDTH, HEADS = 50, 32, 4


class Decoder(nn.Module):
    """A layer of a language model with a cache of keys and values that grows."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t = tokens.shape
        past = keys.shape[2]
        x = self.words(tokens) + self.places(torch.arange(past, past + t))
        q, k, v = self.inner(self.norm(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        seen = torch.arange(past + t) <= torch.arange(past, past + t).unsqueeze(1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        x = x + self.outer(y.transpose(1, 2).reshape(b, t, WIDTH))
        return self.last(x[:, -1]), keys, values


def decoded(step: Any, prompt: Tensor, count: int) -> Tensor:
    """The prompt and what follows."""
    keys = values = torch.zeros(prompt.shape[0], HEADS, 0, WIDTH // HEADS)
    tokens, given = prompt, prompt
    for _ in range(count):
        logits, keys, values = step(given, keys, values)
        given = logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, given], 1)
    return tokens


def backend(found: list[GraphReport], **options: Any) -> Any:
    asked = options_of_backend(None, options)
    return lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=found.append)


@pytest.mark.rotated(1)
@torch.no_grad()
@pytest.mark.parametrize("dynamic, programs", [(None, 3), (True, 2)])
def test_a_cache_that_grows(dynamic, programs):
    """Without `dynamic=True` Dynamo has the first prompt compiled for itself."""
    torch._dynamo.reset()
    model, found = Decoder(), []
    step = torch.compile(model, backend=backend(found, buckets=(64,)), dynamic=dynamic)
    for length, count in ((5, 40), (9, 6), (23, 30), (2, 4)):
        prompt = torch.randint(VOCABULARY, (1, length))
        assert torch.equal(decoded(step, prompt, count), decoded(model, prompt, count))
    assert len(found) <= programs, [report.sizes for report in found]
    assert all(len(report.programs) == 1 and not report.islands for report in found), list(map(str, found))


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_an_input_with_more_behind_it_than_is_known_before():
    torch.compiler.reset()

    def longer(x, count):
        return torch.cat([x, x.new_ones(count.item())])

    fast = torch.compile(longer, backend="kitsune")
    for count in (0, 3):
        x = torch.randn(2)
        assert torch.equal(fast(x, torch.tensor([count])), longer(x, torch.tensor([count])))


@torch.no_grad()
def test_values_of_a_cache_that_grows():
    torch._dynamo.reset()
    model, found = Decoder(), []
    step = torch.compile(model, backend=backend(found, buckets=(128,)), dynamic=True)
    wide = copy.deepcopy(model).double()
    keys = values = torch.randn(2, HEADS, 3, WIDTH // HEADS)
    for _ in range(80):
        tokens = torch.randint(VOCABULARY, (2, 1))
        got, eager = step(tokens, keys, values), model(tokens, keys, values)
        want = wide(tokens, keys.double(), values.double())
        for g, e, w in zip(got, eager, want, strict=True):
            assert g.shape == e.shape and g.stride() == e.stride()
            assert (g.double() - w).abs().max() <= 2 * (e.double() - w).abs().max() + 1e-6
        keys, values = got[1:]
    assert len(found) <= 2, [report.sizes for report in found]


def llama() -> Any:
    """A small Llama of Transformers."""
    models = pytest.importorskip("bench.library_models", reason="the bench is not beside the tests")
    try:
        models.imported("torchvision")
    except ImportError:
        pass  # Transformers imports it where it is installed
    try:
        transformers = models.imported("transformers")
    except ImportError:
        pytest.skip("Transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_llama(cache):
    torch._dynamo.reset()
    model, found = llama(), []
    eager = copy.deepcopy(model)
    model.forward = torch.compile(model.forward, backend=backend(found, buckets=(64,)))
    kind = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    longest = torch.randint(1, 64, (1, 20))
    for prompt, count in ((longest, 40), (torch.randint(1, 64, (1, 9)), 6), (torch.randint(1, 64, (1, 14)), 8)):
        asked = {"max_new_tokens": count, "do_sample": False, **kind}
        assert torch.equal(model.generate(prompt, **asked), eager.generate(prompt, **asked))
    # Dynamo has the first prompt compiled for itself.
    assert len(found) <= 3, [report.sizes for report in found]
    assert all(len(report.programs) == 1 and not report.islands for report in found), list(map(str, found))
