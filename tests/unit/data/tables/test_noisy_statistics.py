"""Statistics of tables under differential privacy: sums by hand, noise by bounds, one release of the run's budget."""

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.hospital_tables import write_folder, write_schema
from support.paths import ROOT

from atoll.config import Config
from atoll.data.tables.columns import Column
from atoll.data.tables.noisy_statistics import Noise, add_up_noisy, measure_noisily, sensitivity
from atoll.data.tables.statistics import ColumnStatistics, StatisticsRequest, TableOptions
from atoll.engine.build import run_experiment
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.experiments.runner import run_one
from atoll.inference.models import open_run
from atoll.privacy.accountant import compute_noise_multiplier
from atoll.utils import secure_random

AGE = Column("age", "number", bounds=(0.0, 100.0))
DOSE = Column("dose", "number", bounds=(-10.0, 30.0))
SEX = Column("sex", "category", ("f", "m"), fixed=True)
REQUEST = StatisticsRequest((AGE, SEX, DOSE), TableOptions(private=True), targets=1, target_bounds=((0.0, 8.0),))
ROWS = np.array([[50.0, 0, 10], [75, 1, np.nan], [200, np.nan, 20], [25, 0, 0]])  # an age beyond its bounds
TARGETS = np.array([[4.0], [8], [0], [6]])
NONE = Noise(0.0, whole_clients=False)


def ones(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def measured(noise: Noise = NONE) -> ColumnStatistics:
    return measure_noisily(ROWS, TARGETS, REQUEST, noise, ones)


def values(statistics: ColumnStatistics) -> list[Any]:
    tensors = (statistics.known, statistics.total, statistics.squares)
    return [None if v is None else v.tolist() for v in tensors]


def test_sums_are_those_of_numbers_between_minus_one_and_one() -> None:
    """Ages become 0, 0.5, 1 (cut off) and -0.5; doses 0, 0.5 and -0.5; targets 0, 1, -1 and 0.5."""
    sent = measured()

    assert values(sent) == [[4, 0, 3], [1, 0, 0], [1.5, 0, 0.5]]
    assert (sent.rows, sent.target_rows, sent.vocabulary) == (0, 4, "{}")
    assert (sent.target_total, sent.target_squares) == (torch.tensor([0.5]), torch.tensor([2.25]))


def test_sums_of_a_whole_client_are_divided_by_its_rows() -> None:
    sent = measured(Noise(0.0, whole_clients=True))

    assert values(sent) == [[1, 0, 0.75], [0.25, 0, 0], [0.375, 0, 0.125]]
    assert (sent.target_rows, sent.target_total) == (1, torch.tensor([0.125]))


def test_noise_is_the_multiplier_times_the_largest_change_by_a_row() -> None:
    """Two columns and a target have three sums each, which a row at a bound moves by 1 each: sqrt(9) in all."""
    assert sensitivity(REQUEST) == 3.0
    at_bounds = np.array([[100.0, 0, 30]])
    change = measure_noisily(at_bounds, np.array([[8.0]]), REQUEST, NONE, ones)
    moved = [*values(change)[0], *values(change)[1], *values(change)[2], change.target_rows]
    assert sum(v * v for v in moved) + 2 == sensitivity(REQUEST) ** 2  # and the two sums of the target

    noisy = measured(Noise(0.5, whole_clients=False))
    assert values(noisy) == [[5.5, 0, 4.5], [2.5, 0, 1.5], [3, 0, 2]]


def test_categories_get_no_noise_because_nothing_is_sent_of_them() -> None:
    sent = measured(Noise(7.0, whole_clients=False))
    assert sent.known is not None
    assert sent.known[1] == 0


def test_agreed_means_are_in_the_unit_of_the_file() -> None:
    """Ages: mean 0.25 and variance 1.5 / 4 - 1 / 16 = 0.3125 of half the width 50, around the middle 50."""
    agreed = add_up_noisy([measured()], REQUEST, NONE)

    assert agreed.known is not None
    assert agreed.total is not None
    assert agreed.squares is not None
    mean = agreed.total[0] / agreed.known[0]
    assert mean == 50 + 50 * 0.25
    assert agreed.squares[0] / agreed.known[0] - mean**2 == pytest.approx(0.3125 * 50**2)
    assert agreed.target_total is not None
    assert agreed.target_total / agreed.target_rows == 4 + 4 * 0.125


def test_column_that_noise_hides_is_taken_as_spread_evenly_between_its_bounds() -> None:
    """With noise of 2 standard deviations above the count of 3 doses, nothing is read off their sums."""
    agreed = add_up_noisy([measured()], REQUEST, Noise(0.6, whole_clients=False))  # 2 * 0.6 * 3 = 3.6

    assert agreed.known is not None
    assert agreed.total is not None
    assert agreed.squares is not None
    assert agreed.known.tolist() == [4, 1, 3]
    assert agreed.total[0] == 4 * 62.5
    assert agreed.total[2] == 3 * 10
    assert agreed.squares[2] / 3 - 100 == pytest.approx(400 / 3)


def test_count_below_the_least_number_of_rows_is_not_used() -> None:
    request = REQUEST._replace(options=TableOptions(private=True, least=4))
    agreed = add_up_noisy([measured()], request, NONE)
    assert agreed.total is not None
    assert agreed.total.tolist()[::2] == [4 * 62.5, 3 * 10]


def test_means_and_deviations_stay_within_the_bounds() -> None:
    false = replace(measured(), total=torch.tensor([1e9, 0, -1e9]), squares=torch.tensor([1e9, 0, -1e9]))
    agreed = add_up_noisy([false], REQUEST, NONE)
    assert agreed.total is not None
    assert agreed.total.tolist()[::2] == [4 * 100, 3 * -10]


# -- runs -------------------------------------------------------------------------------------------------------------


def table(folder: Path, **columns: Any) -> str:
    """Return tables of three hospitals with a schema; None leaves a column out of it."""
    return f"{write_folder(folder / 'data')}?label=outcome&schema={write_schema(folder / 'schema.yaml', **columns)}"


def prepared(data: str, **options: Any) -> Setup:
    base: dict[str, Any] = {"method": "fedavg", "rounds": 2, "dp": "8", "backend": "loop", "epochs": 1}
    return build_setup(Config(data=data, partition="natural", **base | options))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"age": None}, "column 'age' has no declared bounds.*schema.*age: {min: 0, max: 120}"),
        ({"age": "number"}, "column 'age' has no declared bounds"),
        ({"colour": None}, "categories of column 'colour'.*must be declared.*colour: "),
    ],
)
def test_column_that_is_not_declared_is_named_with_the_remedy(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=said):
        prepared(table(tmp_path, **columns))


def test_numbers_to_predict_need_bounds(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 5}" for n in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["dose,days", *rows]))
    schema = tmp_path / "schema.yaml"
    data = f"{tmp_path / 'rows.csv'}?label=days&schema={schema}"
    options: dict[str, Any] = {"task": "regression", "clients": 2, "partition": "iid"}
    schema.write_text("columns: {dose: {min: 0, max: 6}}")
    with pytest.raises(AtollError, match="target 1, has no declared bounds"):
        build_setup(Config(data=data, method="fedavg", dp="8", **options))

    schema.write_text("columns: {dose: {min: 0, max: 6}, days: {min: 0, max: 4}}")
    problem = build_setup(Config(data=data, method="fedavg", dp="1e5", **options)).pool.problem
    assert problem.centre[0] == pytest.approx(2, abs=0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bounds", [{"min": 5, "max": 5}, {"min": 0}, {"min": 0, "max": "x"}, {"min": True, "max": 2}])
def test_bounds_that_are_none_are_refused(bounds: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"schema.yaml: column 'age' has bounds such as"):
        prepared(table(tmp_path, age=bounds))


def test_statistics_are_one_release_of_the_budget_of_the_run(tmp_path: Path) -> None:
    """FedAvg releases once in each of two rounds, and the statistics are the third release."""
    result = run_experiment(prepared(table(tmp_path)))

    record = result.summary["privacy"]["dp"]
    assert (record["planned"], record["releases"], record["of_tables"]) == (3, 3, 1)
    assert record["noise_multiplier"] == compute_noise_multiplier(8, 1e-5, 3)
    assert record["spent"] == pytest.approx(8)
    assert any("means and deviations of columns" in text for text in result.summary["privacy"]["statement"])


def test_run_without_statistics_has_the_whole_budget_for_its_rounds(tmp_path: Path) -> None:
    result = run_experiment(prepared(table(tmp_path), standardise="site"))
    record = result.summary["privacy"]["dp"]
    assert (record["planned"], record["of_tables"]) == (2, 0)


def test_noise_on_sums_has_the_size_that_the_budget_asks_for(tmp_path: Path) -> None:
    """Whole clients: three numbers and nothing to predict, so sqrt(9) times the multiplier."""
    data = table(tmp_path)
    known = [prepared(data, seed=seed).preparations.sent for seed in range(40)]
    exact = [prepared(data, seed=seed, dp="1e9").preparations.sent for seed in range(40)]
    noise = [
        float(v) - float(e)
        for one, other in zip(known, exact, strict=True)
        for i in one
        for v, e in zip(one[i].total, other[i].total, strict=True)  # type: ignore[arg-type]
        if float(e)
    ]
    expected = compute_noise_multiplier(8, 1e-5, 3) * 3
    assert f"standard deviation of {expected:.2f}" in (ROOT / "docs" / "explanation-privacy.md").read_text()
    assert np.std(noise) == pytest.approx(expected, rel=5 / sqrt(2 * len(noise)))


def test_noise_of_statistics_is_the_same_after_a_resumption_and_when_models_are_opened(tmp_path: Path) -> None:
    data, out = table(tmp_path), str(tmp_path / "run")
    run_one(prepared(data, out=out, dp="1000").config, lambda t, line: None)
    again = prepared(data, out=out, dp="1000")
    fresh = prepared(data, out=str(tmp_path / "other"), dp="1000")

    assert json.loads((tmp_path / "run" / "preparation.json").read_bytes()) == again.preparations.to_json()
    assert fresh.preparations.by_client != again.preparations.by_client
    (tmp_path / "run").rename(tmp_path / "moved")
    assert open_run(tmp_path / "moved").preparation("north") == again.preparations.by_client["north"]


def test_statistics_differ_from_run_to_run_by_a_secure_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []

    def counted(shape: tuple[int, ...]) -> torch.Tensor:
        drawn.append(shape)
        return torch.zeros(shape, dtype=torch.float64)

    monkeypatch.setattr(secure_random, "secure", counted)
    prepared(table(tmp_path))
    assert drawn == [(3, 3)] * 3


def test_indicators_do_not_tell_whether_a_column_has_empty_cells(tmp_path: Path) -> None:
    made = prepared(table(tmp_path), missing="indicator").preparations.by_client["north"]
    assert all(column.indicator for column in made.columns)
