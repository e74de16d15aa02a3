"""Image models of timm, torchvision and Transformers, and parts of diffusers' pipelines."""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.breadth.library.language import configured
from bench.breadth.library.made import Build, Draw, case, imported
from bench.case import BenchCase

__all__ = ["diffusion", "images"]


def _timm(name: str, **settings: Any) -> Build:
    return lambda: imported("timm").create_model(name, pretrained=False, **settings)


def _torchvision(name: str, **settings: Any) -> Build:
    def build() -> nn.Module:
        imported("torchvision")
        return getattr(imported("torchvision.models"), name)(weights=None, **settings)

    return build


def _picture(batch: int, size: int = 224, name: str = "0") -> Draw:
    return lambda m: {name: m.normal(batch, 3, size, size)}


def _of_timm() -> list[BenchCase]:
    sized = {
        "vit_s_b1": ("vit_small_patch16_224", 1),
        "vit_s_b16": ("vit_small_patch16_224", 16),
        "deit_s_b8": ("deit_small_patch16_224", 8),
        "swin_t_b8": ("swin_tiny_patch4_window7_224", 8),
        "convnext_t_b1": ("convnext_tiny", 1),
        "convnext_t_b8": ("convnext_tiny", 8),
        "resnet50_b1": ("resnet50", 1),
        "resnet50_b16": ("resnet50", 16),
        "efficientnet_b0_b1": ("efficientnet_b0", 1),
        "efficientnet_b0_b8": ("efficientnet_b0", 8),
        "mobilenetv3_b8": ("mobilenetv3_large_100", 8),
        "mixer_b16_b8": ("mixer_b16_224", 8),
        "regnety_016_b8": ("regnety_016", 8),
        "densenet121_b8": ("densenet121", 8),
        "poolformer_s12_b8": ("poolformer_s12", 8),
    }
    exact = {"vit_s_b8_f32": ("vit_small_patch16_224", 8), "resnet50_b1_f32": ("resnet50", 1)}
    return [
        *(case(name, "timm", _timm(model), _picture(batch)) for name, (model, batch) in sized.items()),
        *(case(name, "timm", _timm(model), _picture(batch), "f32") for name, (model, batch) in exact.items()),
    ]


def _of_torchvision() -> list[BenchCase]:
    return [
        case("resnet18_b16_f32", "torchvision", _torchvision("resnet18"), _picture(16), "f32"),
        case("vgg11_b8", "torchvision", _torchvision("vgg11_bn"), _picture(8)),
        case("shufflenet_b8", "torchvision", _torchvision("shufflenet_v2_x1_0"), _picture(8)),
        case("squeezenet_b8", "torchvision", _torchvision("squeezenet1_1"), _picture(8)),
        case("googlenet_b8", "torchvision", _torchvision("googlenet", aux_logits=False, init_weights=False), _picture(8)),
        case("fcn_resnet50_b4", "torchvision", lambda: _segmentation("fcn_resnet50"), _picture(4)),
    ]


def _segmentation(name: str) -> nn.Module:
    imported("torchvision")
    return getattr(imported("torchvision.models.segmentation"), name)(weights=None, weights_backbone=None)


def _of_transformers() -> list[BenchCase]:
    hf, pixels = "transformers", "pixel_values"
    return [
        case("clip_vision_b8", hf, configured("CLIPVisionModel", "CLIPVision", num_hidden_layers=4), _picture(8, 224, pixels)),
        case("dinov2_b8", hf, configured("Dinov2Model", "Dinov2", num_hidden_layers=3), _picture(8, 224, pixels)),
        case("segformer_b4", hf, configured("SegformerForSemanticSegmentation", "Segformer"), _picture(4, 256, pixels)),
        case("detr_encoder_b2", hf, _detr_encoder, lambda m: {"inputs_embeds": m.normal(2, 400, 256),
             "object_queries": m.normal(2, 400, 256)}),
    ]  # fmt: skip


def _detr_encoder() -> nn.Module:
    library = imported("transformers")
    parts = imported("transformers.models.detr.modeling_detr")
    return parts.DetrEncoder(
        library.DetrConfig(encoder_layers=3, use_timm_backbone=False, backbone_config=library.ResNetConfig())
    )


def images() -> list[BenchCase]:
    """All but diffusers' models."""
    return [*_of_timm(), *_of_torchvision(), *_of_transformers()]


def _unet() -> nn.Module:
    return imported("diffusers").UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(320, 640),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=768,
    )


def _decoder() -> nn.Module:
    autoencoder = imported("diffusers").AutoencoderKL(
        block_out_channels=(128, 256),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
    )
    return autoencoder.decoder


def _transformer() -> nn.Module:
    return imported("diffusers").DiTTransformer2DModel(num_layers=3, sample_size=32)


def diffusion() -> list[BenchCase]:
    """The network, the decoder and the transformer of image pipelines."""
    return [
        case("unet_condition_b2", "diffusers", _unet, lambda m: {"sample": m.normal(2, 4, 32, 32),
             "timestep": m.below(1000, 2), "encoder_hidden_states": m.normal(2, 77, 768)}),
        case("vae_decoder_b1", "diffusers", _decoder, lambda m: {"sample": m.normal(1, 4, 32, 32)}),
        case("dit_b2", "diffusers", _transformer, lambda m: {"hidden_states": m.normal(2, 4, 32, 32),
             "timestep": m.below(1000, 2), "class_labels": m.below(1000, 2)}),
    ]  # fmt: skip
