"""Upstream's debug models with fewer layers, for runs of many ranks."""

from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel, deepseek_v3_debugmodel_mtp
from torchtitan.models.gpt_oss.config_registry import gpt_oss_debugmodel
from torchtitan.models.llama3.config_registry import llama3_debugmodel_varlen_attn
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug
from torchtitan.trainer import Trainer


def _first(config: Trainer.Config, layers: int) -> Trainer.Config:
    del config.model_spec.model.layers[layers:]
    config.activation_checkpoint = None
    return config


def deepseek() -> Trainer.Config:
    """One dense layer and three with experts; latent attention."""
    return _first(deepseek_v3_debugmodel(), 4)


def multi_token() -> Trainer.Config:
    """One dense layer and one with experts, and the layer that predicts a second token."""
    return _first(deepseek_v3_debugmodel_mtp(), 2)


def gpt_oss() -> Trainer.Config:
    """Two layers, one with a sliding window; attention sinks."""
    return _first(gpt_oss_debugmodel(), 2)


def qwen_moe() -> Trainer.Config:
    """One layer of 64 experts; query and key norms."""
    return _first(qwen3_moe_debug(), 1)


def llama() -> Trainer.Config:
    return _first(llama3_debugmodel_varlen_attn(), 4)
