"""Splits of clients' rows, and federated data sets: disjoint, repeatable, cached, exported and read again."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data.dataset import Dataset
from atoll.data.federate import federate
from atoll.data.federated_dataset import FederatedDataset, fingerprint
from atoll.data.partition_files import export
from atoll.data.split import held_out, mirror, mirrored, shares
from atoll.errors import AtollError

SPLITS = ("client_811", "client_82", "official")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dataset(train: list[int], test: list[int], owners: int = 0, name: str = "toy") -> Dataset:
    """So many rows of each class; x holds the number of the row. ``owners`` rotate over the rows."""
    y_train = rng(1).permutation(np.repeat(np.arange(len(train)), train))
    y_test = rng(2).permutation(np.repeat(np.arange(len(test)), test))
    x = np.arange(len(y_train) + len(y_test), dtype=np.float32)[:, None]
    names = np.array([f"owner {i}" for i in range(owners)])
    return Dataset(
        name,
        "table",
        x[: len(y_train)],
        y_train,
        x[len(y_train) :],
        y_test,
        tuple("abcdefghijklmnopqrst"[: len(train)]),
        names[np.arange(len(y_train)) % owners] if owners else None,
        names[np.arange(len(y_test)) % owners] if owners else None,
    )


TOY = dataset([100] * 10, [20] * 10)
WHOLE = dataset([120] * 10, [0] * 10)


def same(a: FederatedDataset, b: FederatedDataset) -> bool:
    return (a.clients, a.notes, a.name, a.recipe) == (b.clients, b.notes, b.name, b.recipe) and all(
        np.array_equal(p, q) and p.dtype == q.dtype == np.int64
        for p, q in zip((*a.train, *a.val, *a.test, a.public), (*b.train, *b.val, *b.test, b.public), strict=True)
    )


# -- splitting what a client owns


def test_shares_use_largest_remainders():
    """8 : 1 : 1 as test, validation, train.

    3: quotas 0.3, 0.3, 2.4, the one left goes to 2.4. 6: 0.6, 0.6, 4.8, the two left go to 4.8 and, of equals, to the
    test. 10 and 15: exact; 1.5, 1.5, 12, the one left goes to the test.
    """
    test, val, train = shares(np.array([3, 6, 10, 15]), 1, 1, 8)
    assert test.tolist() == [0, 1, 1, 2]
    assert val.tolist() == [0, 0, 1, 1]
    assert train.tolist() == [3, 5, 8, 12]


def test_client_811_matches_hand_computed_split():
    """10 and 20 rows: 1 and 2 for test and as many for validation."""
    test, val = held_out(np.array([[10, 20]]), "client_811", rng())
    assert test.tolist() == [[1, 2]]
    assert val.tolist() == [[1, 2]]


def test_client_82_matches_hand_computed_split():
    """40 rows: 8 for test, and of the 32 others 4 for validation; half of each from either class."""
    test, val = held_out(np.array([[20, 20]]), "client_82", rng())
    assert test.tolist() == [[4, 4]]
    assert val.tolist() == [[2, 2]]


def test_official_holds_a_fifth_out_for_validation():
    """5 and 10 rows of the official training part: 1 and 2; the test comes from elsewhere."""
    test, val = held_out(np.array([[5, 10]]), "official", rng())
    assert test.tolist() == [[0, 0]]
    assert val.tolist() == [[1, 2]]


@pytest.mark.promise("Data", "Every class of which a client has three samples is tested.")
def test_class_of_three_rows_has_a_test_row():
    """Ten classes of 3 rows, so that 3 of 30 would be tested: each is. 3 rows of other classes are for validation."""
    test, val = held_out(np.full((1, 10), 3), "client_811", rng())
    assert test.tolist() == [[1] * 10]
    assert val.sum() == 3
    assert val.max() == 1


def test_the_last_row_of_a_class_is_for_training():
    """Of 10 rows 2 are tested. Quotas are 0.2 five times and 1.0, so that a single row would be next in line, but only
    the class of 5 has rows to spare; of its other 3 rows one is for validation.
    """
    test, val = held_out(np.array([[1, 1, 1, 1, 1, 5]]), "client_82", rng())
    assert test.tolist() == [[0, 0, 0, 0, 0, 2]]
    assert val.tolist() == [[0, 0, 0, 0, 0, 1]]


def test_client_with_one_row_of_each_class_is_split():
    """62 single rows: 6.2 for test and for validation; which classes differs from client to client."""
    test, val = held_out(np.ones((50, 62), dtype=np.int64), "client_811", rng())
    assert (test.sum(1) == 6).all()
    assert (val.sum(1) == 6).all()
    assert (test + val).max() == 1
    assert test.sum(0).max() < 20  # about 5 of 50 each


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda c: sum(c) >= 2),
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 99),
)
def test_every_client_can_be_trained_and_tested(counts, split, seed):
    owned = np.array([counts])
    test, val = held_out(owned, split, rng(seed))
    train = owned - test - val
    assert min(test.min(), val.min(), train.min()) >= 0
    assert train.sum() >= 1
    if split == "official":
        assert test.sum() == 0
    else:
        assert test.sum() >= 1
        assert (test[owned >= 3] >= 1).all()
        tenths = 1 if split == "client_811" else 2
        assert test.sum() <= sum(counts) * tenths / 10 + 1 + (owned >= 3).sum()
    if (owned[owned > 0] >= 3).all():
        assert ((train > 0) == (owned > 0)).all()  # nothing is tested that is not learnt


# -- local test sets that mirror the training rows


def test_mirror_matches_hand_computed_rows():
    """round(n_test^c n_i^c / n_train^c): class 0 has 20 test and 100 training rows, class 1 has 8 and 40."""
    counts = np.array([[30, 0], [50, 10], [20, 30]])
    assert mirrored(counts, np.array([100, 40]), np.array([20, 8]), rng()).tolist() == [[6, 0], [10, 2], [4, 6]]


def test_mirror_rounds_to_the_nearest_number():
    """10 of 40: 13, 14 and 13 training rows give 3.25, 3.5 and 3.25."""
    assert mirrored(np.array([[13], [14], [13]]), np.array([40]), np.array([10]), rng()).tolist() == [[3], [4], [3]]


def test_no_test_row_is_given_twice():
    """4 of 8, quotas 1.6, 1.5, 0.5 and 0.4 would round to 2, 2, 1, 0: five. The one rounded up by most gives way: 0.5
    ties with 1.5, so that either stays.
    """
    got = mirrored(np.array([[32], [30], [10], [8]]), np.array([80]), np.array([4]), rng())[:, 0].tolist()
    assert got in ([2, 2, 0, 0], [2, 1, 1, 0])


def test_mirrored_ties_are_broken_at_random():
    """Two test rows for four equal clients: over many draws each gets one half of the time."""
    draws = [mirrored(np.ones((4, 1), dtype=int), np.array([4]), np.array([2]), rng(s))[:, 0] for s in range(400)]
    assert (np.sum(draws, 1) == 2).all()
    assert np.abs(np.mean(draws, 0) - 0.5).max() < 0.1  # four standard deviations


def test_client_without_test_rows_gets_one():
    """97 and 3 of 100 training rows, 10 test rows: 9.7 and 0.3 round to 10 and 0, and the first gives one up."""
    rows = mirror(np.array([[97], [3]]), np.array([100]), np.zeros(10, dtype=np.int64), rng())
    assert [len(r) for r in rows] == [9, 1]
    assert len(np.unique(np.concatenate(rows))) == 10


def test_unused_test_row_is_taken_before_a_row_of_another_client():
    """40 and 1 of 100 training rows (59 are unused), 10 test rows: 4 and 0.1, and 6 are spare."""
    rows = mirror(np.array([[40], [1]]), np.array([100]), np.zeros(10, dtype=np.int64), rng())
    assert [len(r) for r in rows] == [4, 1]
    # No client has a row to spare: 1 and 1 of 10 training rows, 3 test rows, quotas of 0.3.
    rows = mirror(np.array([[1], [1]]), np.array([10]), np.zeros(3, dtype=np.int64), rng())
    assert [len(r) for r in rows] == [1, 1]


def test_clients_that_cannot_be_tested_are_counted():
    """Two test rows cannot reach four clients."""
    got = federate(dataset([40], [2]), 4, "iid", "official")
    assert sorted(len(r) for r in got.test) == [0, 0, 1, 1]
    assert got.notes == ("Clients without a test sample, left out of personal accuracies: 2.",)


# -- federations


@pytest.mark.promise(
    "Data", "No sample serves two purposes: training, validation and test samples of all clients are disjoint."
)
@settings(max_examples=120, deadline=None)
@given(
    partition=st.sampled_from(
        [
            "iid",
            "pathological:2",
            "dirichlet:0.1",
            "dirichlet:0.5:capped",
            "dirichlet:1:masked=0.5",
            "dirichlet:1:client",
            "natural",
        ]
    ),
    split=st.sampled_from(SPLITS),
    clients=st.sampled_from([1, 2, 5, 10, 20]),
    public=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_and_every_client_has_training_rows(partition, split, clients, public, seed):
    data = dataset([60] * 5, [15] * 5, owners=20)
    if partition == "pathological:2" and clients < 5:
        clients = 5
    got = federate(data, clients, partition, split, seed, public)
    lists = (*got.train, *got.val, *got.test, got.public)
    every = np.concatenate(lists)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < 375
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in lists)
    assert len(got.public) == public
    assert len(got.clients) == len(got.train) == len(got.val) == len(got.test) == clients
    assert min(len(rows) for rows in got.train) >= 1
    if split == "official":
        assert all((rows >= 300).all() for rows in got.test)
        assert all((rows < 300).all() for rows in (*got.train, *got.val, got.public))
    untested = sum(len(rows) == 0 for rows in got.test)
    assert (untested > 0) == any("without a test sample" in note for note in got.notes)
    assert untested == 0 or split == "official"
    strays = ((got.counts("test") > 0) & (got.counts("train") == 0)).any()
    assert strays == any("no training sample of" in note for note in got.notes)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("seed", range(3))
def test_pathological_parts_share_their_classes(split, seed):
    """Every class has 100 training and 20 test rows and two owners with 40 to 60 % of it: in every part."""
    got = federate(TOY, 10, "pathological:2", split, seed)
    train, val, test = (got.counts(part) for part in ("train", "val", "test"))
    assert ((train > 0).sum(1) == 2).all()
    assert ((train > 0) == (test > 0)).all()
    assert ((train > 0) == (val > 0)).all()
    for part in (train, val, test):
        held = (part / part.sum(0))[train > 0]
        assert held.min() > 0.3  # 0.4, and one row of about 12 for rounding
        assert held.max() < 0.7


def test_splits_have_their_documented_sizes():
    """1200 rows: 960 : 120 : 120, and 840 : 120 : 240. Official: 1000 into 800 and 200, and the 200 test rows."""
    one = {split: federate(TOY, 1, "iid", split) for split in SPLITS}
    assert [len(one["client_811"].part(p)[0]) for p in ("train", "val", "test")] == [960, 120, 120]
    assert [len(one["client_82"].part(p)[0]) for p in ("train", "val", "test")] == [840, 120, 240]
    assert [len(one["official"].part(p)[0]) for p in ("train", "val", "test")] == [800, 200, 200]


def test_local_test_sets_mirror_the_training_mix():
    got = federate(TOY, 10, "dirichlet:0.5", "official")
    owned = got.counts("train") + got.counts("val")
    assert (owned.sum(0) == 100).all()
    assert np.abs(got.counts("test") - owned * 0.2).max() <= 1
    assert got.counts("test").sum(0).max() <= 20


@pytest.mark.promise("Data", "The same request gives the same partition.")
def test_same_request_gives_same_partition_and_each_argument_changes_it():
    request = {"clients": 5, "partition": "dirichlet:0.5", "split": "client_811", "seed": 0, "public": 10}
    first = federate(TOY, **request)
    assert same(first, federate(TOY, **request))
    assert same(first, federate(TOY, **request | {"partition": "dirichlet:0.50", "seed": np.int64(0)}))
    changes = [{"clients": 6}, {"partition": "dirichlet:0.6"}, {"split": "client_82"}, {"seed": 1}, {"public": 11}]
    others = [federate(TOY, **request | change) for change in changes]
    others += [
        federate(replace(TOY, name="other"), **request),
        federate(replace(TOY, x_train=TOY.x_train + 1), **request),
    ]
    assert len({got.name for got in (first, *others)}) == 8
    assert not np.array_equal(first.train[0], others[3].train[0])


def test_fingerprint_depends_on_every_array():
    owned = dataset([5, 5], [2, 2], owners=2)
    changed = [
        replace(owned, x_train=owned.x_train + 1),
        replace(owned, y_train=owned.y_train[::-1]),
        replace(owned, x_test=owned.x_test + 1),
        replace(owned, y_test=1 - owned.y_test),
        replace(owned, owner_train=owned.owner_train[::-1]),
        replace(owned, owner_test=None),
        replace(owned, classes=("yes", "no")),
        replace(owned, x_train=owned.x_train.astype(np.float64), x_test=owned.x_test.astype(np.float64)),
    ]
    assert len({fingerprint(d) for d in (owned, *changed)}) == 9
    assert fingerprint(owned) == fingerprint(replace(owned, x_train=np.asfortranarray(owned.x_train)))


def test_rows_and_labels_come_from_both_parts():
    got = federate(TOY, 5, "iid")
    mine = got.train[0]
    assert mine[0] < 1000 <= mine[-1]
    assert got.rows(mine)[:, 0].tolist() == mine.tolist()
    assert got.rows(mine[::-1])[:, 0].tolist() == mine[::-1].tolist()
    assert np.array_equal(got.labels(mine), np.concatenate([TOY.y_train, TOY.y_test])[mine])
    assert got.rows(np.array([], dtype=np.int64)).shape == (0, 1)


def test_counts_are_those_of_one_part():
    got = federate(TOY, 5, "iid")
    assert np.array_equal(got.counts(), got.counts("train"))
    assert np.array_equal(got.counts("val")[2], np.bincount(got.labels(got.val[2]), minlength=10))


# -- public rows


def test_public_rows_are_balanced_and_the_same_for_every_scheme():
    """25 rows of 10 classes: 2 or 3 each, all of the training part."""
    a, b = (federate(TOY, 5, scheme, public=25) for scheme in ("iid", "dirichlet:0.5"))
    held = np.bincount(a.labels(a.public))
    assert sorted(held) == [2] * 5 + [3] * 5
    assert a.public.max() < 1000
    assert np.array_equal(a.public, b.public)


def test_a_small_class_keeps_half_of_its_rows():
    """6, 60 and 60 rows, 30 public: the first class gives 3 of its 10, the others make up for it."""
    got = federate(dataset([6, 60, 60], [2, 2, 2]), 3, "iid", public=30)
    assert sorted(np.bincount(got.labels(got.public))) == [3, 13, 14]
    assert got.notes == ("Public samples per class run from 3 to 14, because small classes keep half of theirs.",)


def test_too_many_public_rows_are_refused():
    with pytest.raises(AtollError, match=r"501 public samples cannot be set aside from .* 'toy'. Use from 0 to 500"):
        federate(TOY, 5, "iid", public=501)
    with pytest.raises(AtollError, match="-1 public samples"):
        federate(TOY, 5, "iid", public=-1)


# -- natural owners


def test_owners_are_tested_on_their_own_rows():
    data = dataset([60] * 5, [10] * 5, owners=4)
    got = federate(data, None, "natural", "official")
    assert got.clients == ("owner 0", "owner 1", "owner 2", "owner 3")
    for i, rows in enumerate(got.test):
        assert np.array_equal(rows, 300 + np.arange(i, 50, 4))
        assert (data.owner_train[got.train[i]] == got.clients[i]).all()


def test_an_owner_without_test_rows_is_counted():
    data = dataset([60] * 5, [10] * 5, owners=4)
    data = replace(data, owner_test=np.where(data.owner_test == "owner 3", "stranger", data.owner_test))
    got = federate(data, None, "natural", "official")
    assert [len(r) > 0 for r in got.test] == [True, True, True, False]
    assert got.notes[0].startswith("Clients without a test sample")


def test_owners_share_both_parts_when_merged():
    data = dataset([60] * 5, [10] * 5, owners=4)
    got = federate(data, 2, "natural")
    owners = np.concatenate([data.owner_train, data.owner_test])
    for i, client in enumerate(got.clients):
        mine = np.sort(np.concatenate([got.train[i], got.val[i], got.test[i]]))
        assert np.array_equal(mine, np.flatnonzero(owners == client))


def test_test_rows_without_owner_are_mirrored_or_left_out():
    """The split official mirrors them; other splits leave them out with a note."""
    data = replace(dataset([60] * 5, [10] * 5, owners=4), owner_test=None)
    official = federate(data, None, "natural", "official")
    assert min(len(r) for r in official.test) > 0
    merged = federate(data, None, "natural")
    assert max(rows.max() for rows in merged.test) < 300
    assert merged.notes[0] == "50 samples of the official test part have no owner and are left out."


# -- refusals


def test_official_needs_a_test_part():
    with pytest.raises(AtollError, match=r"data set 'toy' has no official test part. Use client_811 or client_82"):
        federate(WHOLE, 5, "iid", "official")


def test_a_misspelt_split_is_corrected():
    with pytest.raises(AtollError, match=r"Unknown split 'client_81'. Did you mean 'client_811'"):
        federate(TOY, 5, "iid", "client_81")


# -- the cache


def test_cached_partition_is_not_computed_again(tmp_path, monkeypatch):
    first = federate(TOY, 5, public=10, cache=tmp_path / "deep")
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == [f"{first.name}.json", f"{first.name}.npz"]

    def never(*_: object) -> FederatedDataset:
        raise AssertionError("made again")

    monkeypatch.setattr("atoll.data.federate._partition", never)
    again = federate(TOY, 5, public=10, cache=tmp_path / "deep")
    assert same(first, again)
    assert again.dataset is TOY
    with pytest.raises(AssertionError):
        federate(TOY, 6, public=10, cache=tmp_path / "deep")


@pytest.mark.parametrize("damage", ["cut npz", "cut json", "no npz", "other rows"])
def test_damaged_cache_is_replaced(tmp_path, damage):
    first = federate(TOY, 5, cache=tmp_path)
    npz, head = tmp_path / f"{first.name}.npz", tmp_path / f"{first.name}.json"
    if damage == "no npz":
        npz.unlink()
    elif damage == "other rows":
        with np.load(npz) as stored:
            arrays = dict(stored)
        arrays["train"] = arrays["train"][::-1].copy()
        np.savez(npz, **arrays)
    else:
        path = npz if damage == "cut npz" else head
        path.write_bytes(path.read_bytes()[:100])
    assert same(first, federate(TOY, 5, cache=tmp_path))
    assert same(first, federate(TOY, 5, cache=tmp_path))


def test_unwritable_cache_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AtollError, match="Cannot write to folder"):
        federate(TOY, 5, cache=tmp_path / "file")


# -- files


@pytest.mark.parametrize(("split", "partition"), [("client_82", "dirichlet:0.1"), ("official", "pathological:4")])
def test_an_exported_partition_reads_back(tmp_path, split, partition):
    first = federate(TOY, 10, partition, split, public=20)
    export(first, tmp_path / "deep" / "mine.json")
    again = federate(TOY, None, f"file:{tmp_path / 'deep' / 'mine.json'}")
    assert same(first, again)


def exported(tmp_path, change=None) -> str:
    path = tmp_path / "mine.json"
    export(federate(TOY, 3, "iid", public=20), path)
    if change:
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))
    return f"file:{path}"


def test_changed_partition_file_has_another_name(tmp_path):
    def swap(body):
        first, second = body["clients"][0]["train"], body["clients"][1]["train"]
        first[0], second[0] = second[0], first[0]

    original, changed = federate(TOY, 3, "iid", public=20), federate(TOY, 3, exported(tmp_path, swap))
    assert changed.name != original.name
    assert "rows listed in a file" in changed.recipe
    assert changed.clients == original.clients
    assert (np.diff(changed.train[0]) > 0).all()


def without(key):
    return lambda body: body.pop(key)


def put(client, part, rows):
    return lambda body: body["clients"][client].update({part: rows})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(1, "train", []), "client '1' has no training samples. Give it some or remove it"),
        (put(1, "val", [1200]), "val of client '1' has sample 1200, but samples run from 0 to 1199"),
        (put(1, "val", [-1]), "val of client '1' has sample -1"),
        (put(1, "val", [7, 7]), "sample 7 is in"),
        (put(1, "val", [1.5]), "val of client '1' is not a list of whole numbers"),
        (put(1, "val", [True]), "is not a list of whole numbers"),
        (put(1, "val", 7), "is not a list of whole numbers"),
        (put(1, "val", [[1], [2, 3]]), "is not an exported partition"),
        (put(1, "id", "0"), "clients must have different ids"),
        (put(1, "id", 4), "clients must have different ids, each a text"),
        (lambda body: body["clients"].clear(), "there must be at least one"),
        (lambda body: body["clients"][0].pop("test"), "is not an exported partition \\(KeyError: 'test'\\)"),
        (lambda body: body.update(public=body["clients"][2]["test"]), "is in test of client '2' and in public"),
        (without("fingerprint"), "is not an exported partition"),
        (lambda body: body.update(version=99), "has format 99, not 1. Export the partition again"),
    ],
)
def test_partition_file_with_wrong_rows_or_clients_is_refused(tmp_path, change, message):
    with pytest.raises(AtollError, match=message):
        federate(TOY, None, exported(tmp_path, change))


def test_a_file_made_for_other_data_is_refused(tmp_path):
    other = replace(TOY, name="other", x_train=TOY.x_train + 1)
    with pytest.raises(AtollError, match=r"was made for data set 'toy' .* but 'other' has content"):
        federate(other, None, exported(tmp_path))


def test_partition_file_sets_numbers_of_clients_and_public_rows(tmp_path):
    partition = exported(tmp_path)
    assert len(federate(TOY, 3, partition, public=20).clients) == 3
    with pytest.raises(AtollError, match=r"has 3 clients, not 4. Ask for 3 or leave the number out"):
        federate(TOY, 4, partition)
    with pytest.raises(AtollError, match="has 20 public samples, not 5"):
        federate(TOY, 3, partition, public=5)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), ("x", "not an exported"), ("[]", "not an")]
)
def test_missing_or_malformed_partition_file_is_refused(tmp_path, content, message):
    path = tmp_path / "mine.json"
    if content:
        path.write_text(content)
    with pytest.raises(AtollError, match=message):
        federate(TOY, 3, f"file:{path}")
