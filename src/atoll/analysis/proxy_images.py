"""Show images and the output of pFedES's proxy extractor for them."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import AtollError
from ..inference.models import SavedRun
from ..typing import ClientId

Array = NDArray[np.float64]


class ProxyImages(NamedTuple):
    """Images and proxy outputs, both of shape ``[rows, height, width, channels]`` with values from 0 to 1."""

    before: Array
    after: Array


def proxy_images(run: SavedRun, client: ClientId, rows: int = 8) -> ProxyImages:
    """Compute the server's proxy output for the first test images of a client.

    Values are scaled to the range of each picture, because proxy outputs may have another range than images.
    """
    proxy = run.pool.proxy
    if proxy is None or run.data.kind != "image" or not hasattr(run.server, "params"):
        raise AtollError(
            f"The run in {str(run.path)!r} has no proxy that makes images. Give a run of pfedes on images."
        )
    x = run.pool.test[run.pool.position(run.client(client))].x[:rows]
    with torch.no_grad():
        made = proxy(run.server.params, x)
    return ProxyImages(_rescale(x), _rescale(made))


def _rescale(x: Tensor) -> Array:
    """Scale each image to values from 0 to 1, and put channels last."""
    low, high = (f(x.flatten(1), dim=1)[:, None, None, None] for f in (torch.amin, torch.amax))
    scaled: Array = ((x - low) / (high - low).clamp(min=1e-12)).permute(0, 2, 3, 1).double().cpu().numpy()
    return scaled
