"""Export a client's model to safetensors, torch.export or ONNX, with a manifest.

The exported model is read again and must give the same outputs on the client's test rows.
"""

from collections.abc import Callable
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .._version import __version__
from ..core.problems import Classes, Labels, NextToken, Numbers
from ..errors import AtollError, unknown
from ..typing import ClientId
from ..utils.files import to_json, write_whole
from .model_card import model_card
from .models import TrainedModels
from .raw_model import with_raw_inputs

Reader = Callable[[Tensor], Tensor]

TOLERANCE = 1e-4  # of logits, because another runtime sums in another order
MANIFEST, MODEL_CARD = "manifest.json", "README.md"
OUTPUTS = {
    Classes.task: "logits, one for each class",
    Labels.task: "logits, one for each label",
    Numbers.task: "numbers, one for each target",
    NextToken.task: "logits at each position, one for each token",
}


def export_model(models: TrainedModels, client: ClientId, form: str, folder: Path) -> dict[str, object]:
    """Write the model of a client, its manifest and its model card.

    Args:
        models: the trained models.
        client: the client.
        form: ``safetensors``, ``torch`` or ``onnx``.
        folder: folder of the files, created if missing.

    Returns:
        The manifest.

    Raises:
        AtollError: the format is unknown, or the exported model gives other logits.
    """
    if form not in FORMATS:
        raise unknown("form", form, FORMATS)
    name, write, read = FORMATS[form]
    net, problem = models.module(client), models.pool.problem
    raw, x = models.test_rows(client)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        expected = net(x)
        if form != "safetensors":  # a file of weights alone; its manifest has the preparation
            net = with_raw_inputs(net, _raw_kind(models), models.transform, models.preparation(client))
            x = raw
        write(net, x[:2], folder / name)
        found = read(folder / name, net)(x)
    gap = float((expected - found).abs().max())
    numbers = isinstance(problem, Numbers)
    same = numbers or torch.equal(problem.predict(expected), problem.predict(found))
    if gap > TOLERANCE * (max(1.0, float(expected.abs().max())) if numbers else 1.0) or not same:
        outputs = "numbers" if numbers else "logits"
        raise AtollError(
            f"{folder / name} does not reproduce the model: {outputs} differ by {gap:.2g}. Do not use the file."
        )
    manifest = _manifest(models, client, form, folder / name) | {"checked": {"rows": len(x), "largest_gap": gap}}
    write_whole(folder / MANIFEST, (to_json(manifest, indent=1) + "\n").encode())
    score = None if numbers else _own_score(models, client, expected)
    write_whole(folder / MODEL_CARD, model_card(manifest, models.config, models.pool, client, score).encode())
    return manifest


def _own_score(models: TrainedModels, client: ClientId, outputs: Tensor) -> str | None:
    """Return the score of a model on the client's test rows, given its outputs; None if there are none."""
    rows, problem = models.pool.test[models.pool.position(client)], models.pool.problem
    return problem.criterion.named(problem.score(outputs, rows.y)) if len(rows.y) else None


def _manifest(models: TrainedModels, client: ClientId, form: str, file: Path) -> dict[str, object]:
    config, data = models.config, models.data
    return {
        "form": form,
        "file": file.name,
        "sha256": sha256(file.read_bytes()).hexdigest(),
        "atoll": __version__,
        "method": config.method,
        "client": client,
        "architecture": models.pool.models[client].name,
        "round": models.model_round,
        "measured": models.is_measured,
        "classes" if data.num_classes else "names": list(data.classes),
        "input": _describe_input(models, client, form),
        "output": OUTPUTS[models.pool.problem.task],
    }


def _raw_kind(models: TrainedModels) -> str:
    """Return what raw rows are; images that are floats are used as they are, like a table of arrays."""
    return models.data.kind if models.data.x_train.dtype == np.uint8 else "floats"


def _describe_input(models: TrainedModels, client: ClientId, form: str) -> dict[str, object]:
    """Describe what the file reads, and how rows are prepared for the weights in it."""
    data, transform, preparation = models.data, models.transform, models.preparation(client)
    steps: object = "none"
    if preparation is not None:
        steps = {"columns": preparation.to_json(), "inputs": preparation.inputs}
    elif _raw_kind(models) == "image":
        steps = {"scale": 255, "mean": transform.mean, "std": transform.std, "border": transform.border}
    raw = form != "safetensors" and not (preparation and preparation.is_text)
    prepared = list(models.pool.test.all.x.shape[1:])
    return {
        "kind": data.kind,
        "shape": list(data.shape) if raw else prepared,
        "type": str(data.x_train.dtype) if raw else str(models.pool.test.all.x.dtype).removeprefix("torch."),
        "rows": "raw" if raw else "prepared",
        "preparation": steps,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Formats: file name, writer, reader


def _write_safetensors(net: nn.Module, x: Tensor, path: Path) -> None:
    once = {name for name, _ in chain(net.named_parameters(), net.named_buffers())}  # tied tensors have two names
    save_file({name: v.contiguous() for name, v in net.state_dict().items() if name in once}, path)


def _read_safetensors(path: Path, net: nn.Module) -> Reader:
    net.load_state_dict(load_file(path), strict=False)  # without the second names of tied tensors
    return net


def _write_program(net: nn.Module, x: Tensor, path: Path) -> None:
    torch.export.save(_program(net, x), path)


def _program(net: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=65536)
    return torch.export.export(net, (x,), dynamic_shapes=({0: batch},))


def _read_program(path: Path, net: nn.Module) -> Reader:
    module: Reader = torch.export.load(path).module()
    return module


def _write_onnx(net: nn.Module, x: Tensor, path: Path) -> None:
    _need_onnx()
    program = torch.onnx.export(
        net, (x,), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=65536)},),
    )  # fmt: skip
    assert program is not None
    program.save(path)


def _read_onnx(path: Path, net: nn.Module) -> Reader:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        (logits,) = session.run(None, {"x": np.ascontiguousarray(x.numpy())})
        return torch.from_numpy(np.asarray(logits))

    return run


def _need_onnx() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise AtollError(
            "ONNX needs the packages onnxscript and onnxruntime: pip install onnxscript onnxruntime"
        ) from None


FORMATS: dict[str, tuple[str, Callable[[nn.Module, Tensor, Path], None], Callable[[Path, nn.Module], Reader]]] = {
    "safetensors": ("model.safetensors", _write_safetensors, _read_safetensors),
    "torch": ("model.pt2", _write_program, _read_program),
    "onnx": ("model.onnx", _write_onnx, _read_onnx),
}
