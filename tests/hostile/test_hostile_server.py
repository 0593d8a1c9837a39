"""What a hostile server asks a site for: names that are code, other noise, many models, rounds that do not exist."""

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from support import small_runs
from support.local_sites import SMALL, Sites, book

from atoll.config import Config
from atoll.core.serialization import decode, encode
from atoll.deploy.fingerprints import method_digest
from atoll.deploy.received_names import read_config
from atoll.deploy.site.participation import MOST_KEPT
from atoll.deploy.site.time_limit import time_limit
from atoll.deploy.site.worker import RequestHandler, local
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.methods._factory import make
from atoll.methods.fedavg import Global
from atoll.privacy.site_budget import BudgetRule, SiteBudget

Site = Callable[[Frame], Frame]

CODE = """
from pathlib import Path
Path({marker!r}).write_text("code from the server ran")
def f(**options):
    raise ValueError
"""


def federation(folder: Path, method: str = "fedavg", **changes: Any) -> Sites:
    sites = Sites(folder, small_runs.setup(method, **SMALL | {"clients": 2} | changes))
    for name in sites.names:
        sites.write(name, privacy=None, allow=None)
    return sites


def recorded(sites: Sites, **job: Any) -> list[Frame]:
    """The requests of an honest run to site 0."""
    line = sites.line()
    sites.run(line, **job)
    return [frame for site, frame in line.asked if site == "0"]


class Victim:
    """A fresh copy of site 0, and the honest requests of a run that it has not seen."""

    def __init__(self, folder: Path, method: str = "fedavg", **changes: Any):
        self.frames = recorded(federation(folder / "elsewhere", method, **changes))
        self.sites = federation(folder / "victim", method, **changes)
        self.folder = self.sites.folder / "0"
        self._answer = local(self.sites.site("0"))

    def first(self, kind: str) -> Frame:
        return next(frame for frame in self.frames if frame.kind == kind)

    def ask(self, frame: Frame) -> Frame:
        return unpack(self._answer(pack(frame)))

    def begin(self, **config: Any) -> Frame:
        head = self.first("begin").head
        return self.ask(Frame("begin", head | {"config": head["config"] | config}))

    def restart(self) -> None:
        self._answer = local(self.sites.site("0"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def evil(tmp_path: Path, marker: Path) -> str:
    path = tmp_path / "evil.py"
    path.write_text(CODE.format(marker=str(marker)))
    return str(path)


# -- names are never code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["terms", "method", "shared_model", "server_model"])
@pytest.mark.parametrize("kind", ["hello", "begin"])
def test_name_that_is_a_path_is_refused_and_not_imported(
    entry: str, kind: str, tmp_path: Path, evil: str, marker: Path
) -> None:
    victim = Victim(tmp_path)
    value: Any = [evil] if entry == "terms" else evil if entry == "method" else f"{evil}:f:command=id"
    head = victim.first(kind).head

    reply = victim.ask(Frame(kind, head | {"config": head["config"] | {entry: value}}))

    assert reply.code == ("method" if entry == "method" else "rules")
    assert not marker.exists()


def test_settings_behind_the_name_of_a_method_are_values_and_never_code(
    tmp_path: Path, evil: str, marker: Path
) -> None:
    victim = Victim(tmp_path, "fedprox:mu=0.5")

    refused = [victim.begin(method=f"fedprox:{text}").code for text in (f"optim={evil}", evil, f"regularisers={evil}")]

    assert refused == ["method"] * 3
    assert victim.begin(method=f"{evil}:mu=0.5").code == "method"
    assert not marker.exists()
    assert victim.ask(victim.first("begin")).kind == "ready"


def test_roster_with_a_path_is_refused_and_not_imported(tmp_path: Path, evil: str, marker: Path) -> None:
    victim = Victim(tmp_path, "fml")  # shares the smallest model, so that sites build all models of the roster
    head = victim.first("begin").head

    reply = victim.ask(Frame("begin", head | {"models": head["models"] | {"1": f"{evil}:f"}}))

    assert reply.code == "rules"
    assert not marker.exists()


@pytest.mark.parametrize("model", ["timm:resnet18", "torchvision:resnet18", "os.py:system:command=id"])
def test_model_of_another_package_is_refused(model: str, tmp_path: Path) -> None:
    victim = Victim(tmp_path, "fml")
    head = victim.first("begin").head

    assert victim.ask(Frame("begin", head | {"models": head["models"] | {"1": model}})).code == "rules"


@pytest.mark.parametrize("option", [{"shared_model": "mlp:hidden=3000000"}, {"width": 10**8}])
def test_model_with_too_many_weights_is_refused_before_it_is_built(option: dict[str, Any], tmp_path: Path) -> None:
    victim = Victim(tmp_path, "fml")

    assert victim.begin(**option).code == "rules"


def test_proxy_with_too_many_weights_is_refused_before_it_is_built(tmp_path: Path) -> None:
    victim = Victim(tmp_path, "pfedes")

    assert victim.begin(proxy="100000-100000").code == "rules"


def test_configuration_from_the_wire_keeps_known_entries_alone() -> None:
    """``rounds`` is told to sites; paths, metrics, devices and backends are decided by the machine that runs."""
    sent = {"method": "fedavg", "rounds": 7, "metric": ["x.py:f"], "out": "/", "data_dir": "/", "backend": "ray"}

    assert read_config(sent | {"device": "cuda", "unknown": 1}) == Config(method="fedavg", rounds=7)


def test_entries_that_a_site_does_not_need_are_dropped(tmp_path: Path, evil: str, marker: Path) -> None:
    victim = Victim(tmp_path)

    reply = victim.begin(metric=[f"{evil}:f"], data_dir="/", out="/", track=["mlflow"])

    assert reply.kind == "ready"
    assert not marker.exists()


def test_code_that_the_site_lists_word_for_word_is_admitted(tmp_path: Path) -> None:
    source = tmp_path / "short.py"
    source.write_text(
        "from dataclasses import dataclass\n"
        "from atoll.core import Regulariser\n"
        "@dataclass(frozen=True)\n"
        "class Short(Regulariser):\n"
        "    def bind(self, sent, anchor, client):\n"
        "        return lambda step: 0 * step.logits.sum()\n"
    )
    sites = Sites(tmp_path / "sites", small_runs.setup("fedavg", **SMALL, terms=(str(source),)))
    with pytest.raises(Exception, match="does not admit this by its own rules"):
        sites.run()
    for name in sites.names:
        sites.write(name, allow={"code": [str(source)], "scores": "exact"})

    assert sites.run().summary["status"] == "finished"


@pytest.mark.parametrize("config", [None, [], "fedavg", 3])
@pytest.mark.parametrize("kind", ["hello", "begin"])
def test_configuration_that_is_no_table_is_refused(kind: str, config: object, tmp_path: Path) -> None:
    victim = Victim(tmp_path)

    assert victim.ask(Frame(kind, victim.first(kind).head | {"config": config})).code == "rules"


@pytest.mark.parametrize(
    "change", [{"models": None}, {"models": {"1": "mlp"}}, {"models": 3}, {"expect": 3}, {"tables": 3}, {"tables": {}}]
)
def test_malformed_announcement_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    victim = Victim(tmp_path)

    assert victim.ask(Frame("begin", victim.first("begin").head | change)).code == "request"


def test_method_file_that_is_no_method_file_of_the_site_is_not_imported(
    tmp_path: Path, evil: str, marker: Path
) -> None:
    victim = Victim(tmp_path)
    victim.sites.write("0", allow={"code": [evil]})
    victim.restart()

    assert victim.begin(method=evil).code == "method"
    assert not marker.exists()


def test_setting_that_the_method_does_not_have_is_refused(tmp_path: Path) -> None:
    assert Victim(tmp_path).begin(settings={"nonsense": 1}).code == "method"


@pytest.mark.parametrize("kind", ["hello", "statistics", "begin"])
@pytest.mark.parametrize("change", [{"version": "0.0"}, {"protocol": 0}])
def test_every_first_request_of_another_version_is_refused(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    head = victim.first("hello" if kind == "statistics" else kind).head

    assert victim.ask(Frame(kind, head | change)).code == "version"


@pytest.mark.parametrize("run", ["../../escape", "/tmp/escape", "", "A" * 32, "a" * 65, 3])
def test_name_of_a_run_that_could_be_a_path_is_refused(run: object, tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    before = set(tmp_path.rglob("*"))

    for kind in ("begin", "exchange"):
        frame = victim.first(kind)
        assert victim.ask(Frame(kind, frame.head | {"run": run}, frame.body)).code == "request"

    assert set(tmp_path.rglob("*")) == before


def test_result_of_an_exchange_that_never_was_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()

    assert victim.ask(Frame("finish", victim.first("exchange").head)).code == "state"


def test_model_that_is_no_payload_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()
    head = victim.first("exchange").head | {"download": sha256(b"none").hexdigest()}

    assert victim.ask(Frame("exchange", head, b"none")).code == "request"


# -- rules of the site ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "config"),
    [
        ({"methods": ["local"]}, {}),
        ({"rounds": 5}, {"rounds": 6}),
        ({}, {"epochs": 1e9}),
        ({"epochs": 3}, {"epochs": 3.5}),
        ({"epochs": 10}, {"settings": {"optim.epochs": 11}}),
        ({}, {"epochs": None, "steps": 10**9}),
        ({"terms": []}, {"terms": ["proximal:mu=0.1"]}),
        ({"weights": 100}, {}),
    ],
)
def test_request_beyond_the_rules_of_the_site_is_refused(
    rules: dict[str, Any], config: dict[str, Any], tmp_path: Path
) -> None:
    victim = Victim(tmp_path)
    victim.sites.write("0", allow=rules)
    victim.restart()

    assert victim.begin(**config).code == "rules"


def test_steps_count_as_the_epochs_that_they_make_of_the_rows(tmp_path: Path) -> None:
    victim = Victim(tmp_path, epochs=None, steps=1, batch_size=8)
    victim.sites.write("0", allow={"epochs": 3})
    victim.restart()
    rows = len(victim.sites.site("0").federation(victim.sites.setup.config).part("train")[0])
    batches = -(-rows // 8)

    assert victim.begin(steps=3 * batches + 1).code == "rules"
    assert victim.begin(steps=3 * batches).code == "contract"  # admitted; the server expects the setting of its run
    assert victim.begin().kind == "ready"


@pytest.mark.parametrize("kind", ["hello", "begin"])
def test_endless_training_of_a_personal_model_is_refused(kind: str, tmp_path: Path) -> None:
    victim = Victim(tmp_path, "ditto")
    head = victim.first(kind).head
    settings = {"personal_optim.epochs": 1e9}

    reply = victim.ask(Frame(kind, head | {"config": head["config"] | {"settings": settings}}))

    assert reply.code == "rules"


def test_request_that_takes_too_long_is_given_up_and_the_next_one_is_answered(tmp_path: Path) -> None:
    """The endless loop is in a setting of the method that is no number of epochs."""
    victim = Victim(tmp_path, "pfedme")
    handler = RequestHandler(victim.sites.site("0"), partial(time_limit, 2.0))
    begin, exchange = victim.first("begin").head, victim.first("exchange")
    training = {"epochs": begin["config"]["epochs"], "batch_size": begin["config"]["batch_size"]}
    endless = begin["config"] | {"settings": {"steps": 10**9}}
    expect = begin["expect"] | {"contract": method_digest(make("pfedme", {"steps": 10**9}, (), training))}
    assert (
        unpack(handler.handle(pack(Frame("begin", begin | {"config": endless, "expect": expect}))).reply).code is None
    )
    honest = begin | {"run": "b" * 32}

    code = unpack(handler.handle(pack(exchange)).reply).code
    replies = [Frame("begin", honest), exchange._replace(head=exchange.head | {"run": "b" * 32})]
    kinds = [unpack(handler.handle(pack(frame)).reply).kind for frame in replies]

    assert code == "rules"
    assert kinds == ["ready", "upload"]


def test_more_runs_on_a_day_than_the_rules_admit_are_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.sites.write("0", allow={"runs_per_day": 2})
    victim.restart()
    head = victim.first("begin").head

    kinds = [victim.ask(Frame("begin", head | {"run": f"{n:032x}"})) for n in range(3)]

    assert [reply.code or reply.kind for reply in kinds] == ["ready", "ready", "rules"]


# -- noise and budget -------------------------------------------------------------------------------------------------


def test_seed_of_the_noise_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path, dp="8")

    assert victim.begin(dp_seed=7).code == "rules"


@pytest.mark.parametrize("change", [{"dp": "50"}, {"dp": None}, {"dp_clip": 100.0}, {"method": "local"}, {"lr": 0.5}])
def test_second_begin_of_a_run_with_other_options_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    victim = Victim(tmp_path, dp="8")
    assert victim.begin().kind == "ready"

    assert victim.begin(**change).code == "rules"
    assert victim.begin().kind == "ready"


def test_second_begin_of_a_run_with_other_classes_and_columns_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    assert victim.begin().kind == "ready"
    head = victim.first("begin").head

    again = victim.ask(Frame("begin", head | {"tables": {"columns": [], "agreed": None}}))

    assert again.code == "rules"


def test_spent_budget_stays_spent_after_a_second_begin(tmp_path: Path) -> None:
    victim = Victim(tmp_path, dp="8")
    victim.begin()
    for frame in victim.frames:
        if frame.kind == "exchange":
            assert victim.ask(frame).kind == "upload"
    victim.begin(rounds=50, dp_rounds=2)
    again = victim.first("exchange")

    reply = victim.ask(Frame("exchange", again.head | {"round": 2, "base": None}, again.body))

    assert reply.code == "budget"


def test_budget_is_not_planned_anew_when_rounds_are_added_later(tmp_path: Path) -> None:
    """Without ``dp_rounds`` the budget is planned for ``rounds``: with more of them, spent releases would cost less."""
    victim = Victim(tmp_path, dp="8")
    assert victim.begin(dp_rounds=None).kind == "ready"

    assert victim.begin(dp_rounds=None, rounds=50).code == "rules"
    assert victim.begin(dp_rounds=2, rounds=50).kind == "ready"  # the plan of the first announcement


def limited(folder: Path, epsilon: float, **changes: Any) -> Victim:
    victim = Victim(folder, **changes)
    victim.sites.write("0", privacy={"dp": {"epsilon": epsilon, "delta": 1e-5, "per": "year"}})
    victim.restart()
    return victim


def play(victim: Victim, run: str) -> list[str]:
    """Repeat the recorded run under another name, and return the codes or kinds of the replies."""
    kinds = []
    for frame in victim.frames:
        if frame.kind in ("begin", "exchange"):
            # States are named by their digests, which noise changes; a base of None is a first participation.
            head = frame.head | {"run": run} | ({"base": None, "keep": []} if frame.kind == "exchange" else {})
            reply = victim.ask(Frame(frame.kind, head, frame.body))
            kinds.append(reply.code or reply.kind)
    return kinds


def test_third_run_beyond_the_limit_of_the_site_is_refused(tmp_path: Path) -> None:
    """Shifts compose by squares: two runs of epsilon 2 cost about epsilon 3 together, three about 3.8."""
    victim = limited(tmp_path, epsilon=3.3, dp="2")

    assert play(victim, "a" * 32) == ["ready", "upload", "upload"]
    assert play(victim, "b" * 32) == ["ready", "upload", "upload"]
    victim.restart()
    assert play(victim, "c" * 32)[0] == "rules"


def test_limit_of_the_site_holds_for_runs_that_go_on_at_the_same_time(tmp_path: Path) -> None:
    victim = limited(tmp_path, epsilon=2.1, dp="2")
    head, (one, two) = victim.first("begin").head, (f for f in victim.frames if f.kind == "exchange")
    for run in ("a" * 32, "b" * 32):
        assert victim.ask(Frame("begin", head | {"run": run})).kind == "ready"

    codes = []
    for frame in (one, two):
        for run in ("a" * 32, "b" * 32):
            reply = victim.ask(Frame("exchange", frame.head | {"run": run, "base": None, "keep": []}, frame.body))
            codes.append(reply.code or reply.kind)

    # After the first exchange of one run, what is left covers the rest of that run and not the whole of the other.
    assert codes == ["upload", "rules", "upload", "rules"]


def test_budget_that_is_spent_beside_a_run_ends_it(tmp_path: Path) -> None:
    """Statistics of columns and other runs spend the same budget while a run goes on."""
    victim = limited(tmp_path, epsilon=3.3, dp="2")
    assert victim.begin().kind == "ready"
    SiteBudget(BudgetRule(3.3, 1e-5, "year"), victim.folder / "state").write("another", 1.0)

    reply = victim.ask(victim.first("exchange"))

    assert reply.code == "budget"


@pytest.mark.parametrize("kind", ["hello", "begin"])
def test_run_without_noise_is_refused_by_a_site_with_a_limit(kind: str, tmp_path: Path) -> None:
    victim = limited(tmp_path, epsilon=100)

    assert victim.ask(victim.first(kind)).code == "rules"


def test_run_with_less_privacy_than_the_limit_is_refused(tmp_path: Path) -> None:
    assert limited(tmp_path, epsilon=4, dp="8").begin().code == "rules"


# -- exchanges and scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"round": 5}, "run"),
        ({"round": -1}, "rules"),
        ({"exchange": 3}, "rules"),
        ({"exchange": -1}, "rules"),
        ({"round": "x"}, "request"),
        ({"download": "0" * 64}, "request"),
        ({"base": 3}, "request"),
    ],
)
def test_exchange_outside_of_the_run_is_refused(change: dict[str, int], code: str, tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()
    frame = victim.first("exchange")

    assert victim.ask(Frame("exchange", frame.head | change, frame.body)).code == code


def test_message_with_another_digest_than_its_own_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()
    frame = victim.first("exchange")

    assert victim.ask(Frame("exchange", frame.head | {"download": "0" * 64}, frame.body)).code == "request"


@pytest.mark.parametrize("change", [{"base": 3}, {"base": [1]}, {"models": 3}, {"models": {"best": 3, "last": 3}}])
def test_malformed_end_of_a_run_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()

    assert victim.ask(Frame("end", victim.first("end").head | {"base": None, "models": {}} | change)).code == "request"


def other_model(frame: Frame, value: float) -> Frame:
    """The same request with a model of the server's choice."""
    params = {name: torch.full_like(v, value) for name, v in decode(Global, frame.body).params.items()}
    body = encode(Global(params, {}))
    return Frame(frame.kind, frame.head | {"download": sha256(body).hexdigest()}, body)


def test_many_models_for_one_round_are_refused(tmp_path: Path) -> None:
    """A resumed run may repeat a round with another model; a server that tries out models is stopped."""
    victim = Victim(tmp_path)
    victim.begin()
    frame = victim.first("exchange")

    replies = [victim.ask(other_model(frame, 0.01 * n)) for n in range(5)]

    assert [reply.code or reply.kind for reply in replies] == ["upload"] * 3 + ["rules"] * 2


def test_server_cannot_make_a_site_keep_the_states_of_all_rounds(tmp_path: Path) -> None:
    """Each request names all earlier states as needed; the site keeps eight of them, and the round's own."""
    victim = Victim(tmp_path)
    victim.begin(rounds=12)
    frame, known = victim.first("exchange"), list[list[Any]]()

    for number in range(12):
        reply = victim.ask(Frame("exchange", frame.head | {"round": number, "keep": known}, frame.body))
        known.append([number, 0, reply.head["state"]])

    stored = list((victim.folder / "state" / "runs" / frame.head["run"]).glob("*-*-*"))
    assert len(stored) == MOST_KEPT + 1


def test_all_requests_are_refused_while_the_disk_of_a_site_is_full_of_runs(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.sites.write("0", allow={"disk_gb": 1})
    with (victim.folder / "state" / "of-an-earlier-run").open("wb") as file:
        file.truncate(2**30)  # takes no space
    victim.restart()

    codes = [victim.ask(victim.first(kind)).code for kind in ("hello", "begin", "exchange")]

    assert codes == ["rules"] * 3
    assert not (victim.folder / "state" / "runs").exists()


def test_second_model_to_assess_for_one_state_is_refused(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    victim.begin()
    frame = victim.first("exchange")
    request = Frame("assess", {"run": frame.head["run"], "base": None}, frame.body)

    assert victim.ask(request).kind == "score"
    assert victim.ask(request).kind == "score"  # the same request again
    assert victim.ask(other_model(request, 0.5)).code == "rules"


def test_scores_of_few_test_rows_are_withheld_by_default(tmp_path: Path) -> None:
    victim = Victim(tmp_path, test_rows=30)
    victim.begin()
    frame = victim.first("exchange")
    request = Frame("assess", {"run": frame.head["run"], "base": None}, frame.body)

    score = victim.ask(request).head["score"]

    assert score["n"] < 20
    assert {value for name, value in score.items() if name != "n"} == {None}


def test_every_reply_has_a_line_in_the_log_of_the_site(tmp_path: Path) -> None:
    sites = federation(tmp_path, "ditto", wait_free=True, rate=0.5, clients=2)
    line = sites.line()
    sites.run(line)

    asked = [frame.kind for site, frame in line.asked if site == "0"]
    logged = [json.loads(text)["kind"] for text in (tmp_path / "0" / "state" / "sent.jsonl").read_text().splitlines()]
    replies = {
        "hello": "card",
        "begin": "ready",
        "exchange": "upload",
        "finish": "rest",
        "assess": "score",
        "end": "ended",
    }
    assert logged == [replies[kind] for kind in asked]
    assert len(book(tmp_path / "0", "card")) == 1
