"""Differential privacy as it leaves a whole run: clipped changes, and noise of the deviation that the record states."""

from typing import Any

import pytest
import torch

from atoll.api import run
from atoll.core.schema import tensors_of
from atoll.privacy.policy import Privacy


@pytest.mark.promise(
    "Privacy", "The noise in the uploads of a run has the deviation that the record of the run states."
)
def test_noise_in_the_uploads_of_a_run_has_the_stated_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent = received + clipped change + noise. The clipped change is worked out here, so the rest is the noise."""
    seen: list[tuple[Any, Any, Any]] = []
    real = Privacy.upload_filter

    def watched(self: Privacy, job: Any, client: Any, upload: Any) -> Any:
        sent = real(self, job, client, upload)
        seen.append((job.download, upload, sent))
        return sent

    monkeypatch.setattr(Privacy, "upload_filter", watched)
    result = run("fedavg", rows=300, clients=4, rounds=2, epochs=1, dp="8", dp_clip=0.5, backend="loop")
    record = result.summary["privacy"]["dp"]
    noise = []
    for download, made, sent in seen:
        change = torch.cat([(made.params[n] - v).flatten().double() for n, v in download.params.items()])
        clipped = change * min(1.0, record["clip"] / float(change.norm()))
        left = torch.cat([(sent.params[n] - v).flatten().double() for n, v in download.params.items()])
        noise.append(left - clipped)
        assert {name for name, v in tensors_of(sent).items() if v.numel() == 1} == {"n"}
        assert float(sent.n) == 1  # All clients weigh the same.
    assert len(seen) == 8
    assert record["clip"] == 0.5
    deviation = float(torch.cat(noise).std())
    assert deviation == pytest.approx(record["noise_multiplier"] * record["clip"], rel=0.02)
