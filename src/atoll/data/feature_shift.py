"""Simulate feature shift: inputs of clients differ, as from different devices, though their classes may not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..core.prng import Key, key, normal, uniform
from ..errors import AtollError
from ..typing import ClientId
from ..utils.parsing import Spec, number, word

ROTATE, NOISE = "rotate", "noise"
FORM = Spec(
    "rotate:DEGREES or noise:DEVIATION, such as rotate:45 or noise:0.5",
    word("KIND", (ROTATE, NOISE)),
    number("MOST", above=0, most=180),
)


@dataclass(frozen=True)
class FeatureShift:
    """A change of all rows of a client, drawn once for the client from its name and the seed of the run.

    Args:
        kind: ``rotate`` turns images by an angle between -most and most degrees; ``noise`` adds Gaussian noise to
            prepared inputs, of a deviation between 0 and most.
        most: the largest change.
    """

    kind: str
    most: float

    def check(self, kind: str) -> None:
        """Raise an AtollError if data of this kind, such as ``table``, cannot be changed so."""
        able = ("image",) if self.kind == ROTATE else ("image", "table")
        if kind not in able:
            changed = " and ".join(f"{one}s" for one in able)
            raise AtollError(f"--shift {self.kind} changes {changed}, and the samples are {kind} data.")

    def apply(self, x: Tensor, sizes: Sequence[int], clients: Sequence[ClientId], seed: int, part: str) -> Tensor:
        """Change prepared rows.

        Args:
            x: rows of all clients, ordered by client.
            sizes: number of rows of each client.
            clients: names of the clients.
            seed: seed of the run.
            part: the part of the rows, such as ``train``, so that parts get noise of their own.
        """
        parts = x.split(list(sizes))
        changed = [
            self._change(rows, float(uniform(key(seed, "shift", i))), key(seed, "shift", i, part))
            for rows, i in zip(parts, clients, strict=True)
            if len(rows)
        ]
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return torch.cat(changed).contiguous(memory_format=layout) if changed else x

    def _change(self, rows: Tensor, level: float, k: Key) -> Tensor:
        """Change the rows of one client, whose level was drawn between 0 and 1."""
        if self.kind == NOISE:
            return rows + level * self.most * normal(k, *rows.shape).to(rows.device)
        angle = math.radians((2 * level - 1) * self.most)
        turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
        grid = affine_grid(turn.expand(len(rows), 2, 3), list(rows.shape), align_corners=False).to(rows.device)
        return grid_sample(rows, grid, padding_mode="border", align_corners=False)


def read_shift(text: str) -> FeatureShift:
    """Read a value of ``--shift``.

    Example:
        >>> read_shift("rotate:45")
        FeatureShift(kind='rotate', most=45.0)
    """
    return FeatureShift(*FORM.parse("--shift", text))
