"""A training step of llama3_debugmodel in plain torch on the CPU: what the emulator's step is compared with.

The model is written out in plain modules; it takes its weights from torchtitan's own model, computes attention with
scaled_dot_product_attention and is trained by the same fused AdamW with the same clipping. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import time

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
import torch.nn.functional as F
from torch import nn
from torchtitan.models.llama3 import model_registry

BATCH, LENGTH = 2, 256


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        query, key, value = (
            projection(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.wo(attended.transpose(1, 2).flatten(2))
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Llama(nn.Module):
    def __init__(self, config, rotation: torch.Tensor) -> None:
        super().__init__()
        hidden, heads = config.layers[0].feed_forward.w1.out_features, config.layers[0].attention.n_heads
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config.dim, hidden, heads) for _ in config.layers)
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("cos", rotation.real.contiguous(), persistent=False)
        self.register_buffer("sin", rotation.imag.contiguous(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


def build(dtype: torch.dtype) -> Llama:
    config = model_registry("debugmodel", attn_backend="varlen").model
    torch.manual_seed(42)
    titan = config.build()
    titan.init_weights(buffer_device=torch.device("cpu"))
    model = Llama(config, titan.layers["0"].attention.rope.cache[:LENGTH])
    weights = {}
    for name, value in titan.state_dict().items():
        for part in ("attention.qkv_linear.", "attention.", "feed_forward."):
            name = name.replace(f".{part}", ".")
        weights[name] = value
    model.load_state_dict(weights)
    return model.to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    model = build(getattr(torch, options.dtype))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=8e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    seconds = []
    for _ in range(options.steps):
        tokens = torch.randint(0, 2048, (BATCH, LENGTH + 1))
        begin = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"step_seconds": statistics.median(seconds[2:]), "loss": loss.item()}))


if __name__ == "__main__":
    main()
