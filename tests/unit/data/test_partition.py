"""Dividing a pool among clients: the arithmetic of every scheme, what all schemes promise, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data.partition import (
    Capped,
    Dirichlet,
    Masked,
    Pathological,
    Pool,
    cut,
    deal,
    lift,
    parse,
    portions,
    raise_to,
    take,
)
from atoll.errors import AtollError


def pool(*totals: int, owners=None) -> Pool:
    """A shuffled pool with so many rows of each class."""
    labels = np.repeat(np.arange(len(totals)), totals)
    labels = np.random.default_rng(0).permutation(labels)
    return Pool(labels, tuple(f"class {c}" for c in range(len(totals))), owners)


def divide(spec: str, rows: Pool, clients: int | None, seed: int = 0):
    scheme = parse(spec)
    return scheme.divide(rows, clients, np.random.default_rng(seed))


def table(rows: Pool, partition) -> np.ndarray:
    return np.array([np.bincount(rows.labels[r], minlength=len(rows.classes)) for r in partition.rows])


# -- iid


def test_iid_parts_are_equal_and_cover_the_pool():
    rows = pool(50, 53)
    got = divide("iid", rows, 10)
    assert sorted(len(r) for r in got.rows) == [10] * 7 + [11] * 3
    assert sorted(np.concatenate(got.rows)) == list(range(103))
    assert got.clients == tuple("0123456789")


# -- pathological


def test_portions_round_down_and_leave_the_rest():
    """Weights 0.4 and 0.6 of 4001 rows: 1600.4 and 2400.6, so one row belongs to nobody."""
    assert portions(np.array([0.4, 0.6]), 4001).tolist() == [1600, 2400]


def test_portions_are_not_robbed_by_floating_point():
    """0.29 * 100 is 28.999999999999996 in floating point, but 29 rows."""
    assert portions(np.array([0.29, 0.71]), 100).tolist() == [29, 71]


def test_raising_uses_spare_rows_before_those_of_the_largest():
    """Of 9 rows one is spare, of 8 none is, so that the owner of 5 gives one."""
    assert raise_to(np.array([0, 5, 3]), 1, 9).tolist() == [1, 5, 3]
    assert raise_to(np.array([0, 5, 3]), 1, 8).tolist() == [1, 4, 3]


@pytest.mark.parametrize("seed", range(5))
def test_two_of_ten_classes_for_ten_clients(seed):
    """2 x 10 / 10 = 2 owners per class; weights from 0.4 to 0.6 give two owners shares in [0.4, 0.6] that sum to 1."""
    rows = pool(*[1000] * 10)
    counts = table(rows, divide("pathological:2", rows, 10, seed))
    assert ((counts > 0).sum(0) == 2).all()
    assert ((counts > 0).sum(1) == 2).all()
    held = counts[counts > 0]
    assert held.min() >= 399
    assert held.max() <= 600
    assert np.isin(counts.sum(0), [999, 1000]).all()  # two floors lose one row at most


def test_strict_classes_are_distinct_for_fifty_seeds():
    for seed in range(50):
        picks = Pathological(8).pick(10, 10, np.random.default_rng(seed))
        assert all(len(set(mine)) == 8 for mine in picks.tolist())
        assert (np.bincount(picks.ravel()) == 8).all()


@pytest.mark.parametrize(("classes", "of"), [(4, 10), (6, 10), (30, 100), (70, 100), (90, 100)])
def test_strict_completes_every_sweep(classes, of):
    picks = Pathological(classes).pick(10, of, np.random.default_rng(0))
    assert all(len(set(mine)) == classes for mine in picks.tolist())
    assert (np.bincount(picks.ravel()) == classes * 10 // of).all()


def test_code_repeats_classes_as_often_as_simulated():
    """Half of the clients draw a class twice at 8 of 10 (50 to 54 %), none at 2 of 10, because 2 divides 10."""

    def repeated(classes: int) -> float:
        picks = [Pathological(classes, code=True).pick(10, 10, np.random.default_rng(s)) for s in range(200)]
        return float(np.mean([len(set(mine)) < classes for mine in np.concatenate(picks).tolist()]))

    assert 0.45 < repeated(8) < 0.6
    assert repeated(2) == 0


def test_code_gives_both_shares_of_a_repeated_class():
    """Every class has 8 owners' places, so that all its rows but what 8 floors lose are dealt out."""
    rows = pool(*[1000] * 10)
    counts = table(rows, divide("pathological:8:code", rows, 10))
    assert (counts > 0).sum(1).min() < 8
    assert counts.sum(0).min() >= 1000 - 8


def test_one_owner_per_class_takes_it_whole():
    rows = pool(*[50] * 20)
    counts = table(rows, divide("pathological:2", rows, 10))
    assert sorted(counts.max(0)) == [50] * 20
    assert (counts > 0).sum() == 20


def test_rounding_left_overs_are_reported():
    rows = pool(*[1001] * 10)
    got = divide("pathological:2", rows, 10)
    left = 10010 - sum(len(r) for r in got.rows)
    assert left > 0
    assert got.notes == (f"{left} rows are left over from rounding and belong to nobody.",)


def test_owners_of_a_scarce_class_still_get_some():
    """20 owners of 20 rows: shares of 0.034 to 0.073 are 0 or 1 rows when rounded down, so rows are moved."""
    rows = pool(*[20] * 10)
    got = divide("pathological:2", rows, 100)
    assert ((table(rows, got) > 0).sum(1) == 2).all()
    assert "so that every owner of a class holds some of it" in got.notes[0]


def test_classes_without_rows_are_not_dealt():
    rows = Pool(np.repeat([0, 2, 3, 5], 100), tuple("abcdef"))
    counts = table(rows, divide("pathological:2", rows, 4))
    assert ((counts > 0).sum(0) == [2, 0, 2, 2, 0, 2]).all()


# -- dirichlet


def test_a_class_is_cut_at_cumulated_proportions():
    """0.25, 0.5, 0.25 of 10 rows: edges 2.5 and 7.5 round down to 2 and 7; of 4 rows: 1 and 3."""
    proportions = np.array([[0.25, 0.25], [0.5, 0.5], [0.25, 0.25]])
    assert cut(proportions, np.array([10, 4])).tolist() == [[2, 1], [5, 2], [3, 1]]


def test_the_last_client_gets_what_is_left_of_a_class():
    """Proportions that add up to a little less than 1 lose no row."""
    assert cut(np.array([[0.5], [0.4999]]), np.array([10])).tolist() == [[5], [5]]


def test_lifting_prefers_the_class_a_client_has():
    """Client 1 has one row of class 1 and gets a second one from client 0."""
    counts, moved = lift(np.array([[5, 5], [0, 1]]), 2)
    assert counts.tolist() == [[5, 4], [0, 2]]
    assert moved == 1


def test_lifting_takes_from_the_largest_where_nobody_else_has_that_class():
    """Client 0 is largest and holds class 0 only: one row to client 1, two to client 2."""
    counts, moved = lift(np.array([[10, 0], [0, 1], [0, 0]]), 2)
    assert counts.tolist() == [[7, 0], [1, 1], [2, 0]]
    assert moved == 3


def test_lifting_never_takes_from_a_client_without_that_class():
    """Client 0 is large but has no class 1; client 1 has it but none to spare."""
    counts, _ = lift(np.array([[9, 0], [0, 2], [0, 1]]), 2)
    assert counts.tolist() == [[8, 0], [0, 2], [1, 1]]


def test_dirichlet_has_the_moments_of_its_concentration():
    """E[p^2] = (beta + 1) / (N (N beta + 1)) = 1.5 / 60 = 0.025 for N = 10 and beta = 0.5 (equal parts: 0.01)."""
    rows = pool(*[200] * 300)
    counts = table(rows, Dirichlet(0.5).divide(rows, 10, np.random.default_rng(0)))
    assert counts.sum() == 60_000
    assert np.mean((counts / 200) ** 2) == pytest.approx(0.025, rel=0.1)


def test_dirichlet_counts_its_draws():
    """With 8 clients and 60 rows a first draw that leaves somebody with less than 2 rows is common."""
    rows = pool(30, 30)
    notes = [divide("dirichlet:0.5", rows, 8, seed).notes for seed in range(20)]
    assert any(n and n[0].startswith("Drawn ") and "until every client had 2 rows" in n[0] for n in notes)
    assert () in notes


def test_dirichlet_mends_what_cannot_be_drawn():
    """At beta = 0.01 a class falls almost whole on one client: 5 classes cannot reach 40 clients."""
    rows = pool(*[100] * 5)
    got = divide("dirichlet:0.01", rows, 40)
    assert min(len(r) for r in got.rows) >= 2
    assert sum(len(r) for r in got.rows) == 500
    assert "In 100 draws some client always had fewer than 2 rows" in got.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_capped_passes_over_clients_that_have_their_share(seed):
    """A client takes rows of a class only while it holds less than 2000 / 10 = 200 rows of the classes before."""
    rows = pool(*[200] * 10)
    got = Capped(0.5).divide(rows, 10, np.random.default_rng(seed))
    counts = table(rows, got)
    assert counts.sum() == 2000
    assert counts.sum(1).min() >= 10
    before = np.cumsum(counts, 1) - counts
    assert (before[counts > 0] < 200).all()


def test_capped_mends_up_to_ten_rows():
    rows = pool(*[100] * 2)
    got = divide("dirichlet:0.001:capped", rows, 20)
    assert [len(r) for r in got.rows] == [10] * 20
    assert "fewer than 10 rows" in got.notes[0]


def test_the_mask_has_its_probability_and_no_gap():
    takes = Masked(1.0, 0.7).mask(100, 100, np.random.default_rng(0))
    assert takes.mean() == pytest.approx(0.7, abs=0.02)  # standard deviation 0.0046
    thin = Masked(1.0, 0.01).mask(30, 10, np.random.default_rng(0))
    assert thin.any(0).all()
    assert thin.any(1).all()
    assert Masked(1.0, 1.0).mask(20, 10, np.random.default_rng(0)).all()


def test_masked_clients_lack_classes():
    """With beta = 100 everybody who takes part gets rows, so that 30 % of the cells are empty: the mask's."""
    rows = pool(*[2000] * 10)
    counts = table(rows, divide("dirichlet:100:masked=0.7", rows, 20))
    assert counts.sum() == 20_000
    assert np.mean(counts == 0) == pytest.approx(0.3, abs=0.1)
    assert table(rows, divide("dirichlet:100:masked=1", rows, 20)).min() > 0


def test_clients_with_their_own_mix_are_equally_large():
    rows = pool(300, 200, 100, 7)
    got = divide("dirichlet:0.5:client", rows, 10)
    assert sorted(len(r) for r in got.rows) == [60] * 3 + [61] * 7
    assert (table(rows, got).sum(0) == [300, 200, 100, 7]).all()


def test_client_mixes_follow_the_class_frequencies_when_beta_is_large():
    """Dir(1e5 * (0.6, 0.4)) is (0.6, 0.4) to within 0.002; 100 draws from it stray by 5 rows (one deviation)."""
    rows = pool(600, 400)
    counts = table(rows, divide("dirichlet:100000:client", rows, 10))
    assert np.abs(counts[:, 0] - 60).max() < 20


def test_client_mixes_concentrate_as_beta_falls():
    """Without an end to the stock, sum_c q_c^2 would be (beta / 10 + 1) / (beta + 1) on average: 0.92 for 0.1, 0.55 for
    1, 0.11 for 100. Clients that want the same class must share it, so that the first two are lower, but still apart.
    """
    rows = pool(*[100] * 10)

    def concentration(beta: float) -> float:
        counts = [table(rows, divide(f"dirichlet:{beta}:client", rows, 10, seed)) for seed in range(10)]
        return float(np.mean([(c / 100) ** 2 for c in counts]) * 10)

    small, middle, large = concentration(0.1), concentration(1), concentration(100)
    assert small > middle > 1.5 * large
    assert large == pytest.approx(0.11 + 0.009, abs=0.02)  # 0.09 / 10 more from drawing 100 rows by chance


def test_a_class_that_runs_out_is_replaced_by_the_next_in_the_mix():
    """3 of the 5 rows wanted of class 0 are there, the other 2 come from class 1; with a mix of nothing but class 0,
    from whatever is in stock.
    """
    rng = np.random.default_rng(0)
    assert take(np.array([1 - 1e-7, 1e-7, 0]), 5, np.array([3, 9, 9]), rng).tolist() == [3, 2, 0]
    assert take(np.array([1.0, 0, 0]), 5, np.array([3, 0, 9]), rng).tolist() == [3, 0, 2]


# -- natural


def test_owners_are_the_clients_in_order_of_their_names():
    rows = pool(4, 4, owners=np.array(["b", "a", "b", "a", "b", "a", "lone", "b"]))
    got = divide("natural", rows, None)
    assert got.clients == ("a", "b")
    assert [r.tolist() for r in got.rows] == [[1, 3, 5], [0, 2, 4, 7]]
    assert got.notes == ("1 owners with fewer than 2 rows were dropped.",)


def test_the_largest_owners_are_kept():
    rows = pool(5, 4, owners=np.array(["10", "2", "2", "3", "3", "10", "10", "3", "3"]))
    got = divide("natural", rows, 2)
    assert got.clients == ("3", "10")  # numbers in the order of their value
    assert [len(r) for r in got.rows] == [4, 3]
    assert "1 smaller owners were left out" in got.notes[0]


# -- refusals

EVEN = pool(*[100] * 10)


@pytest.mark.parametrize(
    ("spec", "rows", "clients", "message"),
    [
        ("pathological:3", EVEN, 5, r"3 x 5 = 15 places .* 10 classes. Use 10 clients or pathological:2 or pathologi"),
        ("pathological:3", EVEN, 15, r"Use 10 clients or 20 clients or pathological:2 or pathological:4\."),
        ("pathological:11", EVEN, 10, r"11 classes per client, but the data have 10. Use at most pathological:10"),
        ("pathological:2", pool(100, 3), 4, r"class 'class 1' has 3 rows, but its 4 owners need 4"),
        ("iid", EVEN, 501, r"1000 rows cannot give each of 501 clients the 2 rows it needs. Use at most 500 clients"),
        ("dirichlet:0.5:capped", EVEN, 101, r"the 10 rows it needs. Use at most 100 clients"),
        ("iid", EVEN, None, r"needs to know the number of clients"),
        ("iid", EVEN, 0, r"0 clients cannot share anything"),
        ("natural", EVEN, 3, r"does not say who owns a row. Choose another partition"),
        ("natural", pool(2, 2, owners=np.array(list("aabb"))), 3, r"2 owners have at least 2 rows. Use from 1 to 2"),
        ("natural", pool(2, 2, owners=np.array(list("abcd"))), None, r"0 owners have at least 2 rows"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_remedy(spec, rows, clients, message):
    with pytest.raises(AtollError, match=message):
        divide(spec, rows, clients)


@pytest.mark.parametrize(
    "spec",
    [
        "dirichlet",
        "dirichlet:",
        "dirichlet:many",
        "dirichlet:nan",
        "dirichlet:inf",
        "dirichlet:0.5:masked",
        "dirichlet:0.5:masked=often",
        "dirichlet:0.5:capped:client",
        "pathological",
        "pathological:0",
        "pathological:2.5",
        "pathological:-1",
        "pathological:2:cod",
        "pathological:" + "9" * 5000,
        "iid:3",
        "natural:x",
        "file:",
    ],
)
def test_a_malformed_spec_is_shown_the_form(spec):
    with pytest.raises(AtollError, match=rf"--partition cannot be '.*': .*\. Write {spec.partition(':')[0]}"):
        parse(spec)


@pytest.mark.parametrize("beta", ["0", "-1", "1e7"])
def test_concentrations_have_a_range(beta):
    with pytest.raises(AtollError, match="BETA must be a number above 0 and at most 1e\\+06"):
        parse(f"dirichlet:{beta}")


@pytest.mark.parametrize("share", ["0", "1.5"])
def test_mask_probabilities_have_a_range(share):
    with pytest.raises(AtollError, match="masked=P, with P a number above 0 and at most 1"):
        parse(f"dirichlet:1:masked={share}")


def test_a_misspelt_scheme_is_corrected():
    with pytest.raises(AtollError, match="Did you mean 'dirichlet'"):
        parse("dirichelt:0.5")


@pytest.mark.parametrize(
    ("spec", "normal"),
    [
        (" iid ", "iid"),
        ("pathological:02:strict", "pathological:2"),
        ("pathological:2:code", "pathological:2:code"),
        ("dirichlet:5e-1", "dirichlet:0.5"),
        ("dirichlet:1.0:capped", "dirichlet:1:capped"),
        ("dirichlet:0.123456789:client", "dirichlet:0.123456789:client"),
        ("dirichlet:10:masked=.70", "dirichlet:10:masked=0.7"),
        ("natural", "natural"),
    ],
)
def test_a_spec_has_a_normal_form(spec, normal):
    assert str(parse(spec)) == normal
    assert parse(normal) == parse(spec)


# -- what every scheme promises

SCHEMES = [
    "iid",
    "pathological:1",
    "pathological:2",
    "pathological:3:code",
    "dirichlet:0.01",
    "dirichlet:0.5",
    "dirichlet:100",
    "dirichlet:0.01:capped",
    "dirichlet:0.5:capped",
    "dirichlet:0.1:masked=0.2",
    "dirichlet:10:masked=0.7",
    "dirichlet:0.05:client",
    "dirichlet:5:client",
    "natural",
]


@settings(max_examples=200, deadline=None)
@given(
    spec=st.sampled_from(SCHEMES),
    totals=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda t: sum(t) > 0),
    clients=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_a_division_is_refused_or_sound(spec, totals, clients, seed):
    owners = np.random.default_rng(seed).integers(0, 12, sum(totals)).astype(str)
    rows = pool(*totals, owners=owners)
    try:
        got = divide(spec, rows, clients, seed)
    except AtollError:
        plenty = sum(totals) >= 10 * clients and "pathological" not in spec and spec != "natural"
        assert not plenty
        return
    assert len(got.clients) == len(set(got.clients)) == len(got.rows) == clients
    every = np.concatenate(got.rows)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < len(rows.labels)
    assert min(len(r) for r in got.rows) >= (10 if "capped" in spec else 2)
    assert all((np.diff(r) > 0).all() for r in got.rows)
    assert len(every) == len(rows.labels) or got.notes  # what belongs to nobody is said
    again = divide(spec, rows, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(got.rows, again.rows, strict=True))


@settings(max_examples=50, deadline=None)
@given(totals=st.lists(st.integers(0, 20), min_size=1, max_size=5), clients=st.integers(1, 6), seed=st.integers(0, 99))
def test_dealing_gives_what_is_counted(totals, clients, seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(totals)), totals))
    counts = np.stack([rng.multinomial(rng.integers(t + 1), np.full(clients, 1 / clients)) for t in totals], 1)
    assign = deal(labels, counts, rng)
    assert np.array_equal([np.bincount(labels[r], minlength=len(totals)) for r in assign], counts)
    assert len(np.unique(np.concatenate(assign))) == counts.sum()


def test_every_row_is_as_likely_to_be_dealt():
    """3 of 10 rows for client 1, 2000 times: each row 600 times with a standard deviation of 20."""
    rng = np.random.default_rng(0)
    labels = np.zeros(10, dtype=np.int64)
    times = np.bincount(np.concatenate([deal(labels, np.array([[2], [3]]), rng)[1] for _ in range(2000)]))
    assert np.abs(times - 600).max() < 120
