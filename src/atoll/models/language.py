"""Build a small language model: one transformer block that sees only earlier tokens, with tied embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AtollError
from .registry import Body, Shape, TiedBody, model


class CausalBlock(nn.Module):
    """A transformer block with normalisation before each part: attention to earlier positions, then two layers.

    Args:
        width: width of a position.
        heads: attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.mix(self._attend(self.qkv(self.norm1(h))))
        out: Tensor = h + self.fc2(F.gelu(self.fc1(self.norm2(h))))
        return out

    def _attend(self, qkv: Tensor) -> Tensor:
        """Return attention [B, T, d], written out in plain products, which vmap can batch."""
        batch, length, wide = qkv.shape
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, wide // 3)


class LanguageBody(TiedBody):
    """Embeddings of tokens and positions, one causal block, and a normalisation: tokens [B, T] to features [B, T, d].

    Args:
        length: largest number of positions.
        width: width of embeddings and features.
        heads: attention heads.
    """

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__(width)
        self.position = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()
        self.block = CausalBlock(width, heads)
        self.norm = nn.LayerNorm(width)

    def reset_parameters(self) -> None:
        """Draw the embeddings of positions; all other layers draw their own weights."""
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        h = F.embedding(tokens, self.embedding) * math.sqrt(self.width) + self.position[: tokens.shape[-1]]
        out: Tensor = self.norm(self.block(h))
        return out


@model("lm", "Language model: one causal transformer block, embedding 32, which is the head too (tied)", "next-token")
def lm(shape: Shape, *, embedding: int = 32, heads: int = 2) -> Body:
    if embedding < 1 or heads < 1 or embedding % heads:
        raise AtollError(f"Model 'lm': {heads} heads cannot share an embedding of {embedding}. Choose a multiple.")
    return LanguageBody(shape[0], embedding, heads), embedding
