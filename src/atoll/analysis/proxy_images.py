"""pFedES: images, and what its proxy extractor makes of them."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import AtollError
from ..inference.models import SavedRun
from ..typing import ClientId

Array = NDArray[np.float64]


class Enhanced(NamedTuple):
    """[rows, height, width, channels], both from 0 to 1."""

    before: Array
    after: Array


def enhanced(run: SavedRun, client: ClientId, rows: int = 8) -> Enhanced:
    """The first test images of a client, and the images that the server's proxy makes of them.

    Values are stretched to the range of each picture: what the proxy makes need not lie where images do.
    """
    proxy = run.pool.proxy
    if proxy is None or run.data.kind != "image" or not hasattr(run.server, "params"):
        raise AtollError(
            f"The run in {str(run.path)!r} has no proxy that makes images. Give a run of pfedes on images."
        )
    x = run.pool.test[run.pool.position(run.client(client))].x[:rows]
    with torch.no_grad():
        made = proxy(run.server.params, x)
    return Enhanced(_stretched(x), _stretched(made))


def _stretched(x: Tensor) -> Array:
    low, high = (f(x.flatten(1), dim=1)[:, None, None, None] for f in (torch.amin, torch.amax))
    scaled: Array = ((x - low) / (high - low).clamp(min=1e-12)).permute(0, 2, 3, 1).double().cpu().numpy()
    return scaled
