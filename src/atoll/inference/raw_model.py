"""Build models that read raw rows: the preparation of rows and a network in one module, for export."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from ..data.tables.preparation import ColumnPreparation, Preparation
from ..data.transforms import Transform


class RawImages(nn.Module):
    """A network behind the preparation of images.

    Args:
        net: reads prepared images.
        transform: the preparation.
    """

    def __init__(self, net: nn.Module, transform: Transform):
        super().__init__()
        self.net = net
        self._border = transform.border
        self._transpose = transform.transpose
        self.register_buffer("mean", torch.tensor(transform.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(transform.std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for images as bytes, ``[N, channels, H, W]``."""
        images = x.float() / 255
        if self._transpose:
            images = images.mT
        if self._border:
            images = pad(images, [self._border] * 4)
        outputs: Tensor = self.net((images - self.get_buffer("mean")) / self.get_buffer("std"))
        return outputs


class RawTable(nn.Module):
    """A network behind the preparation of a table.

    Args:
        net: reads prepared rows.
        preparation: the preparation.
    """

    def __init__(self, net: nn.Module, preparation: Preparation):
        super().__init__()
        self.net = net
        self._columns = preparation.columns

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for raw rows, float64 ``[N, columns]``, with NaN for empty cells."""
        inputs = torch.cat([_prepare(x[:, at], column) for at, column in enumerate(self._columns)], dim=1)
        outputs: Tensor = self.net(inputs.float())
        return outputs


def _prepare(values: Tensor, column: ColumnPreparation) -> Tensor:
    """Return the inputs that a column becomes, as `Preparation.apply` computes them."""
    if not column.own:
        return torch.zeros_like(values)[:, None].expand(-1, len(column.inputs))
    empty = values.isnan()
    if column.column.is_number:
        filled = torch.where(empty, column.fill, values)
        made = ((filled - column.mean) / column.deviation)[:, None]
    else:
        count = len(column.levels)
        code = torch.where(empty | (values < 0) | (values >= count), count, values).long()
        made = one_hot(code, count + 1)[:, :count].double()
    return torch.cat([made, empty[:, None].double()], dim=1) if column.indicator else made


def with_raw_inputs(net: nn.Module, kind: str, transform: Transform, preparation: Preparation | None) -> nn.Module:
    """Return a model that reads raw rows. Token ids of texts stay as they are.

    Args:
        net: reads prepared rows.
        kind: what the rows are.
        transform: the preparation of images.
        preparation: the preparation of tables and texts.
    """
    if preparation is not None and not preparation.is_text:
        return RawTable(net, preparation).eval()
    return RawImages(net, transform).eval() if kind == "image" else net
