"""The dashboard in a real browser, beside a real run: `make test-ui`. Pictures of what was seen go to build/ui."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import started_chromium
from support.paths import ROOT
from support.run_files import checkpoint, make_run

pytestmark = pytest.mark.browser

PICTURES = ROOT / "build" / "ui"
PATIENCE = 60_000  # milliseconds, for a machine that has other things to do
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that ended, each in its way."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        make_run(
            root / f"few/dcpfl-seed{seed}", seed=seed, by_val=0.9 + seed / 100, accuracies=(0.5, 0.8, 0.9 + seed / 100)
        )
        make_run(root / f"few/fedavg-seed{seed}", "fedavg", seed, generic=0.55, sent=(40_000, 40_000))
    make_run(root / "diverged", "fedprox", status="diverged", rejected={2: [{"client": "a", "reason": "holds NaN"}]})
    knowing = make_run(root / "feddw", "feddw", config={"method": "feddw", "dp": "8:1e-5"})
    omega = np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)
    checkpoint(knowing, {"extra/DW.omega": omega, "params/head.weight": np.eye(2, dtype=np.float32)})
    damaged = make_run(root / "damaged", "<b>bold</b>")
    (damaged / "holdings.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def going(root: Path) -> Iterator[str]:
    """The name of a run that goes on for as long as the tests do."""
    words = shlex.split("run local --clients 4 --rounds 100000 --epochs 1 --checkpoint-every 2 --backend loop --out")
    run = subprocess.Popen(
        [sys.executable, "-m", "atoll", *words, str(root / "live")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield "live"
    run.kill()
    run.wait()


@pytest.fixture(scope="module")
def address(root: Path, going: str) -> Iterator[str]:
    words = [sys.executable, "-m", "atoll", "ui", str(root), "--port", "0", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().split()[1]
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with started_chromium() as browser:
        yield browser


class Visit:
    """A page that was opened, and what it did that it should not have done."""

    def __init__(self, chromium: Any, address: str, size: dict[str, int], scheme: str = "light"):
        self.context = chromium.new_context(viewport=size, color_scheme=scheme)
        self.page, self.address, self.faults = self.context.new_page(), address, list[str]()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on(
            "request", lambda r: None if r.url.startswith(address.partition("?")[0]) else self.faults.append(r.url)
        )
        self.page.goto(address)
        self.page.wait_for_selector("table.runs tbody tr")

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}-{self.page.viewport_size['width']}.png", full_page=True)

    def shown(self) -> list[str]:
        """The runs that are listed, by their folders."""
        texts = self.page.locator("table.runs td.what small:first-of-type").all_inner_texts()
        return [text.partition(" ")[0] for text in texts]

    def fits(self) -> bool:
        """Whether the page needs no scrolling sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def select(self, name: str) -> Any:
        return self.page.get_by_role("combobox", name=name, exact=True)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what no selector can tell; the page forbids to evaluate code in it again and again."""
        give_up = time.monotonic() + PATIENCE / 1000
        while not condition():
            assert time.monotonic() < give_up
            self.page.wait_for_timeout(200)


@pytest.fixture(params=[WIDE, NARROW], ids=["wide", "narrow"])
def visit(request: Any, chromium: Any, address: str) -> Iterator[Visit]:
    made = Visit(chromium, address, request.param)
    yield made
    made.context.close()
    assert made.faults == []


def test_a_run_that_goes_on_is_followed(visit: Visit) -> None:
    page = visit.page
    row = page.locator("table.runs tr", has_text="live")
    row.locator(".chip.running").wait_for()
    row.locator("a").click()
    for part in ("#curves svg", "#clients svg"):
        page.locator(part).first.wait_for()
    done = page.locator("#head .card b").first
    before = int(done.inner_text().split()[0])
    visit.until(lambda: int(done.inner_text().split()[0]) > before)
    assert visit.fits()
    visit.picture("live")


def test_runs_are_filtered_sorted_and_compared(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Filter").fill("few SEED1")
    assert sorted(visit.shown()) == ["few/dcpfl-seed1", "few/fedavg-seed1"]
    page.get_by_label("Filter").fill("")
    visit.select("Status").select_option("diverged")
    assert visit.shown() == ["diverged"]
    visit.select("Status").select_option("")
    visit.select("Method").select_option("fedavg")
    assert visit.shown() == ["few/"]  # three seeds in one row
    page.get_by_role("button", name="Seeds of fedavg").click()
    assert len(visit.shown()) == 1 + 3
    page.get_by_label("Group seeds").uncheck()
    assert len(visit.shown()) == 3
    page.get_by_label("Group seeds").check()
    visit.select("Method").select_option("")
    visit.picture("list")
    for box in page.get_by_label(re.compile("^Choose 3 seeds")).all():
        box.check()
    page.get_by_role("link", name="Compare").click()
    page.locator(".metrics tbody tr").first.wait_for()
    assert page.locator(".metrics tbody tr:not(.baseline)").count() == 2
    assert page.locator(".metrics tbody tr.baseline").inner_text().startswith("majority")
    assert "91.00 ± 1.00" in page.locator(".metrics tbody tr").first.inner_text()
    assert page.locator("polyline").count() == 2
    assert page.locator("polygon").count() == 1  # seeds of fedavg do not differ
    visit.select("Against").select_option("bytes")
    page.get_by_text("bytes, up and down, all clients").wait_for()
    page.get_by_title("Show or hide").first.click()
    visit.until(lambda: page.locator("polyline").count() == 1)
    page.get_by_title("Show or hide").first.click()
    assert visit.fits()
    visit.picture("compare")


def test_order_and_columns_are_kept_over_a_reload(visit: Visit) -> None:
    page = visit.page
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Bytes", exact=True).uncheck()
    heads = page.locator("table.runs thead th")
    if page.viewport_size["width"] > 760:
        page.get_by_role("button", name="Run", exact=True).click()
    else:
        visit.select("Sort by").select_option("name")
    before = visit.shown()
    page.reload()
    page.wait_for_selector("table.runs tbody tr")
    assert visit.shown() == before
    texts = heads.all_text_contents()
    assert not [text for text in texts if "Bytes" in text]
    assert [text for text in texts if text.startswith("Run") and text.endswith("↑")]
    assert [text for text in texts if text.startswith("Began")]


def test_no_tile_stands_alone(visit: Visit) -> None:
    page = visit.page
    page.locator("table.runs a", has_text="feddw").click()
    page.locator("#config h2").wait_for()
    tops = [box["y"] for card in page.locator("#head .card").all() if (box := card.bounding_box())]
    assert len(tops) > 4
    assert tops.count(max(tops)) > 1 or len(tops) == 1


def test_one_run_shows_who_holds_what_what_travels_and_what_the_server_knows(visit: Visit) -> None:
    page = visit.page
    page.locator("table.runs a", has_text="feddw").click()
    page.locator("#heat svg").nth(1).wait_for()
    assert "0.90" in page.locator("#heat title").all_text_contents()[0]
    assert page.locator("#holdings circle").count() == 8  # 4 clients by 2 classes, and every one holds some
    assert "w_k, the model after local training" in page.locator("#contract").inner_text()
    page.locator("#config summary").click()
    assert "feddw" in page.locator("#config pre").inner_text()
    assert visit.fits()
    visit.picture("run")


def test_a_damaged_run_is_told_and_what_it_says_is_never_markup(visit: Visit) -> None:
    page = visit.page
    page.locator("table.runs a", has_text="<b>bold</b>").click()
    page.get_by_role("alert").wait_for()
    assert "holdings.json" in page.get_by_role("alert").inner_text()
    assert page.locator("#curves svg").count() > 0
    assert visit.fits()


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page, keys = visit.page, visit.page.keyboard
    keys.press("/")
    keys.type("few dcpfl")
    assert len(visit.shown()) == 3
    for key in ("ArrowDown", "Space", "ArrowDown", "Space"):
        keys.press(key)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keys.press("c")
    page.locator(".metrics tbody tr:not(.baseline)").wait_for()
    page.locator("svg[role=img]").first.focus()
    keys.press("ArrowRight")
    assert "round 1" in page.locator(".tip").inner_text()
    assert page.locator(".tip div").first.bounding_box()["height"] < 30  # one line: swatch, name and value
    keys.press("Escape")
    page.locator("table.runs tbody tr").first.wait_for()
    assert page.get_by_label("Filter").input_value() == "few dcpfl"
    keys.press("ArrowDown")
    keys.press("Enter")
    page.locator("#config h2").wait_for()
    keys.press("Escape")
    visit.until(lambda: page.evaluate("document.activeElement.dataset.kind") == "link")  # back where one left
    keys.press("/")
    keys.press("Escape")
    assert len(visit.shown()) > 3
    keys.press("Escape")  # out of the empty filter, in which every key is a letter
    keys.press("Shift+?")
    assert page.locator("dialog").is_visible()
    keys.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_light_and_dark_follow_the_system_and_the_switch(chromium: Any, address: str) -> None:
    visit = Visit(chromium, address, WIDE, scheme="dark")
    page = visit.page

    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark, light = "rgb(23, 27, 33)", "rgb(255, 255, 255)"
    seen = [paper()]
    for _ in range(3):
        page.locator("#theme").click()
        seen.append(paper())
    assert seen == [dark, light, dark, dark]  # the system's, light, dark, the system's again
    page.keyboard.press("t")
    page.reload()
    assert paper() == light  # what was chosen is kept
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert paper() == light  # the system's
    page.locator("#theme").click()
    assert paper() == dark
    visit.picture("dark")
    visit.context.close()
    assert visit.faults == []


def test_text_can_be_read_on_every_paper(chromium: Any, address: str) -> None:
    """The contrast of text that is not large, by the formula of WCAG: at least 4.5."""
    script = """() => [...document.querySelectorAll('main *')]
      .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
      .map((e) => [e.tagName, e.textContent.slice(0, 30), getComputedStyle(e).color])"""
    for scheme, paper in (("light", (255, 255, 255)), ("dark", (23, 27, 33))):
        visit = Visit(chromium, address, WIDE, scheme)
        for tag, text, colour in visit.page.evaluate(script):
            assert contrast(components(colour), paper) >= 4.5, (scheme, tag, text, colour)
        visit.context.close()


def components(colour: str) -> tuple[float, ...]:
    numbers = [float(n) for n in re.findall(r"[\d.]+", colour)][:3]
    return tuple(255 * n for n in numbers) if colour.startswith("color(") else tuple(numbers)


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    def luminance(colour: tuple[float, ...]) -> float:
        shares = [c / 255 for c in colour]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_page_says_when_nobody_answers_any_more(chromium: Any, root: Path) -> None:
    words = [sys.executable, "-m", "atoll", "ui", str(root), "--port", "0", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    visit = Visit(chromium, process.stdout.readline().split()[1], WIDE)
    process.kill()
    process.communicate()
    visit.page.get_by_text("is atoll ui still running?").wait_for()
    assert len(visit.shown()) > 5
    visit.context.close()


@pytest.mark.parametrize("width", [768, 1024, 1260])
def test_list_fits_windows_of_medium_width(chromium: Any, address: str, width: int) -> None:
    made = Visit(chromium, address, {"width": width, "height": 900})

    assert made.fits()
    made.context.close()


def test_marks_of_an_axis_differ_where_values_are_near_to_each_other(chromium: Any, root: Path, address: str) -> None:
    for seed, near in ((0, 0.9640), (1, 0.9644)):
        make_run(root / f"near-{seed}", "fedper", seed, accuracies=(near, near, near))
    made = Visit(chromium, address, WIDE)

    made.page.get_by_role("link", name="fedper").first.click()
    marks = made.page.locator(".chart > svg > text.tick[text-anchor=end]")
    marks.first.wait_for()

    texts = marks.all_text_contents()
    assert len(set(texts)) == len(texts)
    made.context.close()
