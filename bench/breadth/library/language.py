"""Language and speech models of Transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bench.breadth.library.made import Build, Draw, case, imported
from bench.case import BenchCase
from bench.models import Maker

__all__ = ["configured", "language"]


def configured(model: str, config: str, **settings: Any) -> Build:
    """A model of Transformers of a configuration, published widths where nothing is said."""

    def build() -> nn.Module:
        library = imported("transformers")
        return getattr(library, model)(getattr(library, f"{config}Config")(**settings))

    return build


def _tokens(batch: int, length: int, words: int = 30_000) -> Draw:
    return lambda m: {"input_ids": m.below(words, batch, length)}


def _masked(batch: int, length: int, words: int = 30_000) -> Draw:
    """Rows of different lengths."""

    def draw(m: Maker) -> dict[str, Tensor]:
        tokens = m.below(words, batch, length)
        places, ends = m.places(length), length - 5 * m.places(batch) % (length // 2)
        return {"input_ids": tokens, "attention_mask": (places < ends[:, None]).long()}

    return draw


def _sound(name: str, *shape: int) -> Draw:
    return lambda m: {name: m.normal(*shape)}


def language() -> list[BenchCase]:
    """All of them: whole depth for BERT-base and GPT-2, a few layers of the others in their published widths."""
    hf = "transformers"
    four = {"num_hidden_layers": 4}
    llama = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    decoder = {**llama, "num_hidden_layers": 2, "vocab_size": 32_000, "use_cache": False}
    qwen = {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 32_000,
        "use_cache": False,
    }
    speech = {"encoder_layers": 2, "decoder_layers": 1}
    return [
        case("bert_base_b1", hf, configured("BertModel", "Bert"), _masked(1, 128)),
        case("bert_base_b16", hf, configured("BertModel", "Bert", **four), _masked(16, 128)),
        case("bert_base_b8_f32", hf, configured("BertModel", "Bert", num_hidden_layers=2), _masked(8, 128), "f32"),
        case("distilbert_b8", hf, configured("DistilBertModel", "DistilBert", n_layers=3), _masked(8, 128)),
        case("roberta_b8", hf, configured("RobertaModel", "Roberta", **four), _masked(8, 128)),
        case("electra_b16", hf, configured("ElectraModel", "Electra", **four), _masked(16, 64)),
        case("albert_b8_f32", hf, configured("AlbertModel", "Albert", hidden_size=768, num_attention_heads=12,
             intermediate_size=3072, num_hidden_layers=3), _masked(8, 64), "f32"),
        case("gpt2_b1", hf, configured("GPT2LMHeadModel", "GPT2", use_cache=False), _tokens(1, 128)),
        case("gpt2_b8", hf, configured("GPT2Model", "GPT2", n_layer=4, use_cache=False), _tokens(8, 256)),
        case("gpt2_b1_f32", hf, configured("GPT2Model", "GPT2", n_layer=2, use_cache=False), _tokens(1, 128), "f32"),
        case("opt_b8", hf, configured("OPTModel", "OPT", **four, use_cache=False), _masked(8, 128)),
        case("llama_b1", hf, configured("LlamaModel", "Llama", **decoder), _tokens(1, 128)),
        case("llama_b8", hf, configured("LlamaModel", "Llama", **decoder), _masked(8, 128)),
        case("mistral_b1", hf, configured("MistralModel", "Mistral", **decoder, sliding_window=64), _tokens(1, 256)),
        case("qwen2_b1", hf, configured("Qwen2Model", "Qwen2", **qwen, **four), _tokens(1, 128)),
        case("qwen2_b8_f32", hf, configured("Qwen2Model", "Qwen2", **qwen, num_hidden_layers=2), _tokens(8, 64), "f32"),
        case("gpt_neox_b8", hf, configured("GPTNeoXModel", "GPTNeoX", hidden_size=768, num_attention_heads=12,
             intermediate_size=3072, vocab_size=32_000, num_hidden_layers=3, use_cache=False), _tokens(8, 128)),
        case("bloom_b8", hf, configured("BloomModel", "Bloom", hidden_size=1024, n_head=16, n_layer=3, vocab_size=32_000,
             use_cache=False), _masked(8, 128)),
        case("t5_encoder_b1", hf, configured("T5EncoderModel", "T5", d_model=768, d_kv=64, d_ff=3072, num_heads=12,
             num_layers=4), _tokens(1, 128)),
        case("t5_encoder_b8", hf, configured("T5EncoderModel", "T5", num_layers=4), _masked(8, 128)),
        case("whisper_encoder_b1", hf, configured("WhisperForAudioClassification", "Whisper", d_model=512, **speech,
             encoder_attention_heads=8, encoder_ffn_dim=2048), _sound("input_features", 1, 80, 3000)),
        case("whisper_encoder_b8", hf, configured("WhisperForAudioClassification", "Whisper", **speech),
             _sound("input_features", 8, 80, 3000)),
        case("wav2vec2_b4", hf, configured("Wav2Vec2Model", "Wav2Vec2", num_hidden_layers=3),
             _sound("input_values", 4, 16_000)),
        case("clip_text_b8", hf, configured("CLIPTextModel", "CLIPText", num_hidden_layers=4), _tokens(8, 77)),
        case("mamba_b1", hf, configured("MambaModel", "Mamba", hidden_size=768, num_hidden_layers=2, use_cache=False,
             vocab_size=32_000), _tokens(1, 64)),
        case("mixtral_b1", hf, configured("MixtralModel", "Mixtral", hidden_size=1024, intermediate_size=3584,
             num_attention_heads=16, num_key_value_heads=4, num_local_experts=8, num_hidden_layers=2, vocab_size=32_000,
             use_cache=False), _tokens(1, 128)),
    ]  # fmt: skip
