"""Models of PyTorch: a decoder as Hugging Face writes it, and an image's network."""

from typing import Any

import torch
from torch import nn


class RmsNorm(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Layer(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, width: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.depth = width // heads
        sizes = {"q": width, "k": kv_heads * self.depth, "v": kv_heads * self.depth, "out": width}
        sizes |= {"gate": ffn, "up": ffn}
        self.parts = nn.ModuleDict({name: nn.Linear(width, size, bias=False) for name, size in sizes.items()})
        self.down = nn.Linear(ffn, width, bias=False)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (self.parts[name](y).unflatten(-1, (-1, self.depth)).transpose(1, 2) for name in "qkv")
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.parts["out"](y.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.parts["gate"](y)) * self.parts["up"](y))


class Decoder(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(Layer(256, 4, 2, 512) for _ in range(layers))
        self.norm, self.head = RmsNorm(256), nn.Linear(256, 1000, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        with torch.no_grad():
            places = torch.arange(ids.shape[1], device=ids.device)[:, None] * torch.ones(64, device=ids.device)
            cos, sin = places.cos().to(x.dtype), places.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x)[:, -1:])


class Images(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.beside, self.classes = nn.Conv2d(16, 16, 1, bias=False), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu(self.norm(self.conv(x)))
        x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.relu(x + self.beside(x))
        return self.classes(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def decoder(layers: int = 1, seq: int = 64) -> Any:
    return Decoder(layers).to(torch.bfloat16), (torch.zeros(1, seq, dtype=torch.long),)


def images(batch: int = 2) -> Any:
    return Images().to(torch.bfloat16), (torch.zeros(batch, 3, 32, 32, dtype=torch.bfloat16),)


def a_module_alone() -> Any:
    return Images()


def by_values() -> Any:
    class Branch(nn.Module):  # type: ignore[misc,unused-ignore]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    return Branch(), (torch.zeros(4),)
