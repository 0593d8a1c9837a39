"""The preparation of tables and texts: hand numbers, scikit-learn's numbers, and what test rows may not change."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.hospital_tables import write_folder, write_table, write_unlike

from atoll.config import Config
from atoll.data.tables.columns import Column
from atoll.data.tables.preparation import Preparation, fit, from_json
from atoll.data.tables.statistics import TableOptions, add_up, measure, read_vocabulary, to_send
from atoll.engine.build import run_experiment
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError

NAN = float("nan")
AGE, SEX = Column("age", "number"), Column("sex", "category", ("f", "m"))
HERE = np.array([[1.0, 0], [3.0, 1], [NAN, NAN]])  # ages 1, 3 and none; f, m and none
THERE = np.array([[5.0, 1], [7.0, 1]])


def prepare(**options: str) -> tuple[Preparation, Preparation]:
    """Return the preparations of two sites."""
    rules, columns = TableOptions(**options), (AGE, SEX)  # type: ignore[arg-type]
    agreed = add_up([to_send(x, columns, rules) for x in (HERE, THERE)])
    first, second = (fit(columns, agreed, measure(x, columns), rules) for x in (HERE, THERE))
    return first, second


def setup(folder: Path, **options: object) -> Setup:
    values = {"method": "fedavg", "data": f"{folder}?label=outcome", "partition": "natural", "backend": "loop"}
    return build_setup(Config(**values | options))  # type: ignore[arg-type]


def test_columns_are_standardised_by_the_rows_of_all_sites() -> None:
    """Ages 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5. The empty age becomes the mean, which is 0."""
    here, there = prepare()

    assert here == there
    assert here.inputs == ["age", "sex=f", "sex=m"]
    expected = [[-3 / 5**0.5, 1, 0], [-1 / 5**0.5, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(here.apply(HERE), expected, rtol=1e-6)


def test_columns_are_standardised_by_the_rows_of_each_site() -> None:
    """Here ages 1 and 3 have mean 2 and deviation 1, there 5 and 7 have 6 and 1; categories are those of all."""
    here, there = prepare(standardise="site", missing="site")

    assert here.apply(HERE).tolist() == [[-1, 1, 0], [1, 0, 1], [0, 0, 0]]
    assert there.apply(THERE).tolist() == [[-1, 0, 1], [1, 0, 1]]


def test_empty_cells_are_filled_by_the_mean_of_the_site_or_of_all() -> None:
    """Without standardisation: mean 2 of the site, mean 4 of all; an indicator marks the cell."""
    site, _ = prepare(standardise="no", missing="site")
    every, _ = prepare(standardise="no", missing="all")
    marked, _ = prepare(standardise="no", missing="indicator")

    assert site.apply(HERE)[2].tolist() == [2, 0, 0]
    assert every.apply(HERE)[2].tolist() == [4, 0, 0]
    assert marked.inputs == ["age", "age is empty", "sex=f", "sex=m", "sex is empty"]
    assert marked.apply(HERE)[2].tolist() == [4, 1, 0, 0, 1]


def test_constant_columns_and_columns_without_a_value_become_zero() -> None:
    """0.1 three times: the variance of rounded squares is not exactly 0, and must not become a scale."""
    columns = (Column("one", "number"), Column("none", "empty"))
    x = np.array([[0.1, NAN]] * 3)

    made = fit(columns, add_up([to_send(x, columns, TableOptions())]), measure(x, columns), TableOptions())

    np.testing.assert_allclose(made.apply(x), 0, atol=1e-16)


def test_statistics_of_few_rows_stay_at_the_site() -> None:
    """Two rows have an age and one row each f and m: with at least 2 rows the age leaves, f and m do not."""
    sent = to_send(HERE, (AGE, SEX), TableOptions(least=2))
    withheld = to_send(HERE, (AGE, SEX), TableOptions(least=3))

    assert sent.total is not None
    assert sent.total.tolist() == [4, 0]
    assert read_vocabulary(sent) == {"sex": {}}
    assert withheld.known is not None
    assert withheld.known.tolist() == [0, 0]
    assert withheld.total is not None
    assert withheld.total.tolist() == [0, 0]


def test_sites_send_no_more_than_the_rules_need() -> None:
    """With means of each site, only categories have to be agreed on."""
    sent = to_send(HERE, (AGE, SEX), TableOptions("site", "site"))

    assert (sent.known, sent.total, sent.squares) == (None, None, None)
    assert read_vocabulary(sent) == {"sex": {"f": 1, "m": 1}}


def test_a_category_that_no_training_row_has_is_an_empty_cell() -> None:
    here, _ = prepare()
    other = (Column("sex", "category", ("d", "m")), AGE)

    rows = here.apply(np.array([[0.0, 4.0], [1.0, 4.0]]), other)

    assert rows.tolist() == [[0, 0, 0], [0, 0, 1]]


def test_a_missing_column_is_named() -> None:
    here, _ = prepare()
    with pytest.raises(AtollError, match="has no column 'sex'"):
        here.apply(np.zeros((1, 1)), (AGE,))


def test_a_stored_preparation_is_read_as_it_was() -> None:
    here, _ = prepare(missing="indicator")
    assert from_json(here.to_json()) == here
    with pytest.raises(AtollError, match="damaged"):
        from_json([{"name": "age"}])


@pytest.mark.parametrize("missing", ["all", "indicator"])
def test_a_run_prepares_rows_as_scikit_learn_does_on_the_union_of_training_rows(tmp_path: Path, missing: str) -> None:
    made = setup(write_folder(tmp_path / "data"), missing=missing)
    federation = made.federation
    raw = federation.rows(np.concatenate(federation.train))
    numbers = raw[:, [0, 1, 3]]
    colours = np.array([*federation.dataset.columns[2].levels, "none"])
    colour = colours[np.where(np.isnan(raw[:, 2]), len(colours) - 1, raw[:, 2]).astype(int)][:, None]
    filled = SimpleImputer(add_indicator=missing == "indicator").fit_transform(numbers)
    scaled = StandardScaler().fit(numbers).transform(filled[:, :3])
    coded = OneHotEncoder(sparse_output=False).fit(colour).transform(colour)

    names = next(iter(made.preparations.by_client.values())).inputs
    x = dict(zip(names, made.pool.train.all.x.T.double(), strict=True))

    for at, name in enumerate(("age", "dose", "seen")):
        np.testing.assert_allclose(x[name], scaled[:, at], atol=1e-6)
    for at, level in enumerate(["blue", "green", "grey", "none", "red"]):
        if level != "none" or missing == "indicator":
            wanted = "colour is empty" if level == "none" else f"colour={level}"
            np.testing.assert_array_equal(x[wanted], coded[:, at])
    if missing == "indicator":
        np.testing.assert_array_equal(x["dose is empty"], filled[:, 3])


def test_a_changed_test_row_changes_no_training_input(tmp_path: Path) -> None:
    path = write_table(tmp_path / "all.csv")
    options = {"data": f"{path}?label=outcome&owner=hospital"}
    before = setup(tmp_path, **options)
    row = int(before.federation.test[0][0])
    lines = path.read_text().splitlines()
    cells = lines[1 + row].split(",")
    lines[1 + row] = ",".join(["1000000", "1000000", *cells[2:]])
    path.write_text("\n".join(lines) + "\n")

    after = setup(tmp_path, **options)

    assert torch.equal(before.pool.train.all.x, after.pool.train.all.x)
    assert torch.equal(before.pool.val.all.x, after.pool.val.all.x)
    assert not torch.equal(before.pool.test.all.x, after.pool.test.all.x)


def test_a_folder_of_tables_is_the_federation_of_one_table_with_owners(tmp_path: Path) -> None:
    folder = setup(write_folder(tmp_path / "data"))
    table = setup(tmp_path, data=f"{write_table(tmp_path / 'all.csv')}?label=outcome&owner=hospital")

    assert folder.federation.clients == ("north", "south", "west")
    assert torch.equal(folder.pool.train.all.x, table.pool.train.all.x)
    assert torch.equal(folder.pool.test.all.y, table.pool.test.all.y)


def test_the_vocabulary_of_texts_is_that_of_training_rows(tmp_path: Path) -> None:
    """Every text has a word of its own; only words of training rows get an id."""
    lines = ["text,label"] + [f"good word{i} good,{i % 2}" for i in range(40)]
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(lines) + "\n")

    made = build_setup(Config(data=str(path), clients=2, partition="iid"))

    words = next(iter(made.preparations.by_client.values())).columns[0].levels
    trained = np.concatenate(made.federation.train)
    assert words[0] == "good"
    assert set(words[1:]) == {f"word{i}" for i in trained}
    assert made.pool.train.all.x[:, 0].tolist() == [2] * len(trained)
    assert (made.pool.test.all.x[:, 1] == 1).all()  # the words of test rows are unknown


def test_nothing_is_sent_under_a_privacy_budget_if_nothing_must_be_agreed_on(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    numbers = f"{folder}?label=outcome&ignore=colour&classes=ill,well"
    assert not setup(folder, data=numbers, dp="8", standardise="site").preparations.sent


def test_public_rows_and_global_tests_need_one_preparation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    with pytest.raises(AtollError, match="Public samples must mean the same"):
        setup(folder, method="fedmd", public=20, standardise="site")
    with pytest.raises(AtollError, match="--global-test"):
        setup(folder, global_test=True, standardise="site")
    assert setup(folder, method="fedmd", public=20).pool.public is not None


# -- sites with different columns --------------------------------------------------------------------------------------


def test_each_model_reads_the_columns_that_its_client_has(tmp_path: Path) -> None:
    """Inputs: age, dose, three colours and seen. The south lacks the dose, the west dose and colours."""
    made = setup(write_unlike(tmp_path / "data"), method="fedproto", columns="own")

    assert made.preparations.own_inputs == {
        "north": (0, 1, 2, 3, 4, 5), "south": (0, 2, 3, 4, 5), "west": (0, 5),
    }  # fmt: skip
    widths = [next(iter(made.pool.models[i].init().values())).shape[1] for i in made.pool.ids]
    assert widths == [6, 5, 2]
    assert "Client west has no column dose, colour." in made.notes
    x = made.pool.train[2].x
    other = x.clone()
    other[:, 1:5] = 9.0
    model = made.pool.models["west"]
    assert torch.equal(model(model.init(), x), model(model.init(), other))


def test_methods_that_average_whole_models_refuse_unlike_columns(tmp_path: Path) -> None:
    folder = write_unlike(tmp_path / "data")
    # None with public rows, which clients prepare differently, nor with a proxy, which reads images.
    able = "dcpfl, fd, fedapen, fedgh, fedhkd, fedkd, fedproto, fedtgp, fml, lgfedavg, local"
    with pytest.raises(AtollError, match=rf"--columns give mlp on 6 inputs.*heterogeneous models: {able}\."):
        setup(folder, columns="own")
    with pytest.raises(AtollError, match=r"south\.csv has no column 'dose', which .*north\.csv has.*--columns own"):
        setup(folder)


@pytest.mark.parametrize("name", ["local", "fedproto", "fedgh", "fd", "lgfedavg", "dcpfl", "fml", "fedkd"])
def test_methods_for_heterogeneous_models_run_on_unlike_columns(name: str, tmp_path: Path) -> None:
    made = setup(write_unlike(tmp_path / "data"), method=name, columns="own", rounds=1, epochs=1)

    assert run_experiment(made).summary["rounds"] == 1


def test_a_client_without_any_column_is_named(tmp_path: Path) -> None:
    folder = write_unlike(tmp_path / "data")
    (folder / "west.csv").write_text("dose,outcome\n" + "4,ill\n4,well\n" * 10)
    with pytest.raises(AtollError, match="client 'west' has no column"):
        setup(folder, method="fedproto", columns="own")
