"""Small unmodified models of Transformers, timm, torchvision, PyG and diffusers that torch.compile is tried on.

Weights are random. Nothing is downloaded. `expected` says what torch.compile makes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from bench.breadth.library.made import imported

__all__ = ["EXPECTED", "MODELS", "Case", "expected"]

Case = Callable[[], tuple[nn.Module, dict[str, Any]]]
"""Makes a model in evaluation mode, and its arguments by name."""

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
DECODER = {**TEXT, "num_key_value_heads": 2}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
PATCHES = {**IMAGE, "intermediate_size": 64}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}
T5 = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
BOTH = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
}  # fmt: skip
WHISPER = {
    **BOTH, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "max_source_positions": 50,
}  # fmt: skip
UNET = {
    "sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "cross_attention_dim": 16, "norm_num_groups": 4,
    "attention_head_dim": 4, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip
VAE = {
    "block_out_channels": (16, 32), "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "sample_size": 16,
}  # fmt: skip

Draw = Callable[[], dict[str, torch.Tensor]]


def words(length: int = 9, name: str = "input_ids") -> dict[str, torch.Tensor]:
    """Numbers of words, [2, length]."""
    return {name: torch.randint(3, 99, (2, length))}


def pixels(size: int = 32) -> Draw:
    """Images, [2, 3, size, size]."""
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def _transformers(name: str, draw: Draw = words, part: str = "", **settings: Any) -> Case:
    """`name` is a model's class, whose configuration is the class of the name's beginning."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        library = imported("transformers")
        made = getattr(library, name)
        model = made(made.config_class(**settings)).eval()
        return getattr(model, part) if part else model, draw()

    return make


def _images(library: str, name: str, size: int = 64) -> Case:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        imported("torchvision")  # which timm imports
        if library == "timm":
            model = imported("timm").create_model(name, num_classes=10)
        else:
            model = getattr(imported("torchvision.models"), name)(weights=None, num_classes=10)
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():  # timm begins some heads with zeros: all results would be
                nn.init.normal_(weight, std=0.02)
        return model.eval(), {"x": torch.randn(2, 3, size, size)}

    return make


class Graph(nn.Module):
    """Two layers of PyG, one behind the other."""

    def __init__(self, layer: str):
        super().__init__()
        made = getattr(imported("torch_geometric.nn"), layer)
        self.first, self.second = made(8, 16), made(16, 16)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Of nodes [N, 8] and edges [2, E]: [N, 16]."""
        return self.second(torch.relu(self.first(x, edge_index)), edge_index)


def _graph(layer: str) -> Case:
    return lambda: (Graph(layer).eval(), {"x": torch.randn(20, 8), "edge_index": torch.randint(0, 20, (2, 60))})


def _diffusers(name: str, part: str, draw: Draw, settings: Mapping[str, Any]) -> Case:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        model = getattr(imported("diffusers"), name)(**settings).eval()
        return getattr(model, part) if part else model, draw()

    return make


MODELS: dict[str, Case] = {
    "bert": _transformers("BertModel", **TEXT),
    "roberta": _transformers("RobertaModel", **TEXT),
    "electra": _transformers("ElectraModel", embedding_size=32, **TEXT),
    "distilbert": _transformers("DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=99),
    "albert": _transformers("AlbertModel", embedding_size=16, **TEXT),
    "gpt2": _transformers("GPT2LMHeadModel", **GPT),
    "opt": _transformers("OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32, **TEXT),
    "llama": _transformers("LlamaForCausalLM", **DECODER),
    "mistral": _transformers("MistralForCausalLM", sliding_window=4, **DECODER),
    "qwen2": _transformers("Qwen2ForCausalLM", **DECODER),
    "qwen3": _transformers("Qwen3ForCausalLM", head_dim=8, **DECODER),
    "gemma": _transformers("GemmaForCausalLM", head_dim=8, **DECODER),
    "phi": _transformers("PhiForCausalLM", **TEXT),
    "gpt_neox": _transformers("GPTNeoXForCausalLM", **TEXT),
    "bloom": _transformers("BloomForCausalLM", hidden_size=32, n_layer=2, n_head=4, vocab_size=99),
    "falcon": _transformers("FalconForCausalLM", **TEXT),
    "t5_encoder": _transformers("T5EncoderModel", **T5),
    "t5": _transformers("T5Model", lambda: words() | words(5, "decoder_input_ids"), **T5),
    "bart": _transformers("BartModel", **BOTH),
    "mamba": _transformers("MambaForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=99, state_size=4),
    "mixtral": _transformers("MixtralForCausalLM", num_local_experts=4, **DECODER),
    "whisper_encoder": _transformers("WhisperModel", lambda: {"input_features": torch.randn(2, 80, 100)}, "encoder", **WHISPER),
    "wav2vec2": _transformers(
        "Wav2Vec2Model",
        lambda: {"input_values": torch.randn(2, 1600)},
        conv_dim=(16,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **TEXT,
    ),
    "clip_text": _transformers("CLIPTextModel", **TEXT),
    "clip_vision": _transformers("CLIPVisionModel", pixels(), **PATCHES),
    "vit": _transformers("ViTModel", pixels(), **PATCHES),
    "deit": _transformers("DeiTModel", pixels(), **PATCHES),
    "dinov2": _transformers("Dinov2Model", pixels(), **IMAGE),
    "swin": _transformers(
        "SwinModel", pixels(), image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "convnext": _transformers("ConvNextModel", pixels(64), hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    "resnet": _transformers(
        "ResNetModel", pixels(64), embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"
    ),
    "segformer": _transformers("SegformerModel", pixels(64), hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    "patchtst": _transformers(
        "PatchTSTModel",
        lambda: {"past_values": torch.randn(2, 32, 3)},
        num_input_channels=3,
        context_length=32,
        patch_length=4,
        patch_stride=4,
        d_model=16,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=32,
    ),
    **{f"tv_{name}": _images("torchvision", name) for name in ("resnet18", "mobilenet_v3_small", "squeezenet1_1")},
    **{f"tv_{name}": _images("torchvision", name) for name in ("shufflenet_v2_x0_5", "densenet121")},
    **{f"timm_{name}": _images("timm", name) for name in ("resnet10t", "test_efficientnet", "test_convnext", "test_resnet")},
    **{f"timm_{name}": _images("timm", name) for name in ("poolformer_s12", "mobilenetv4_conv_small")},
    "timm_test_vit": _images("timm", "test_vit", 160),
    "timm_mixer_s32_224": _images("timm", "mixer_s32_224", 224),
    **{
        f"pyg_{layer}": _graph(layer)
        for layer in ("GCNConv", "GATConv", "GATv2Conv", "SAGEConv", "TransformerConv", "GraphConv")
    },
    "unet": _diffusers(
        "UNet2DConditionModel",
        "",
        lambda: {
            "sample": torch.randn(1, 4, 16, 16),
            "timestep": torch.tensor([3]),
            "encoder_hidden_states": torch.randn(1, 5, 16),
        },
        UNET,
    ),
    "vae_decoder": _diffusers("AutoencoderKL", "decoder", lambda: {"sample": torch.randn(1, 4, 8, 8)}, VAE),
}
"""By name."""

EXPECTED: dict[str, tuple[list[int], list[str]]] = {
    # Dynamo ends graphs where PyG asks which edges are loops.
    "pyg_GCNConv": ([1] * 6, []),
    "pyg_GATConv": ([1] * 5, []),
    "pyg_GATv2Conv": ([1] * 5, []),
    "mixtral": ([5], ["transformers.grouped_mm_fallback.default"] * 4),
    "mixtral_bf16": ([1], []),  # for which PyTorch has grouped products
}
"""Programs of each graph, and operators that PyTorch runs, by name or "NAME_TYPE"; where neither is here, one graph that is one
program."""
EXPECTED_ON: dict[str, dict[str, tuple[list[int], list[str]]]] = {
    # Its Dynamo makes three graphs of these.
    "2.11": {"t5": ([1] * 3, []), "bart": ([1] * 3, [])},
}
"""The same where a version of PyTorch differs from 2.13."""


def expected(name: str, dtype: str, version: str = torch.__version__) -> tuple[list[int], list[str]]:
    """Programs of each graph of a model, and operators that PyTorch runs."""
    tables = EXPECTED_ON.get(".".join(version.split(".")[:2]), {}), EXPECTED
    return next((table[key] for table in tables for key in (f"{name}_{dtype}", name) if key in table), ([1], []))
