"""The report in a real browser: values under the pointer, hidden methods, enlarged parts (`make test-ui`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import started_chromium
from support.run_files import make_run

from atoll.report import html

pytestmark = pytest.mark.browser

SIZES = {"wide": {"width": 1400, "height": 900}, "narrow": {"width": 390, "height": 844}}
ROUNDS = tuple(0.5 + t / 100 for t in range(12))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        for label, step in (("dcpfl", 0.2), ("local", 0.0)):
            accuracies = tuple(v + step + seed / 50 for v in ROUNDS)
            make_run(root / f"{label}-{seed}", label, seed, accuracies=accuracies, validation=accuracies)
    return html.write([root], root / "report.html")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with started_chromium() as browser:
        yield browser


@pytest.fixture(params=SIZES)
def page(request: Any, chromium: Any, report: Path) -> Iterator[Any]:
    context = chromium.new_context(viewport=SIZES[request.param])
    page, faults = context.new_page(), list[str]()
    page.on("console", lambda m: faults.append(m.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda r: faults.append(r.url) if r.url != report.as_uri() else None)
    page.goto(report.as_uri())
    page.locator("#curves .chart svg polyline").first.wait_for()
    yield page
    context.close()
    assert faults == []


def press(page: Any, name: str) -> None:
    """Press a button of the curves, and wait for all charts: each is drawn once its element has a width."""
    page.locator("#curves").get_by_role("button", name=name).click()
    page.locator("figure.live .chart:not(:has(svg))").first.wait_for(state="detached")


def ticks(page: Any) -> list[float]:
    """The numbers at the vertical axis of the first chart."""
    texts = page.locator("#curves .chart > svg > text.tick[text-anchor=end]").all_text_contents()
    return [float(text) for text in texts]


def test_values_of_all_methods_stand_under_the_pointer(page: Any) -> None:
    picture = page.locator("#curves .chart > svg")
    box = picture.bounding_box()

    picture.hover(position={"x": box["width"] - 16, "y": 60})

    tip = page.locator("#curves .tip").inner_text()
    assert "round 12" in tip
    # Means of two seeds: 0.61 + 0.2 and 0.61, with 0 and 0.02 more.
    assert "82.00" in tip
    assert "62.00" in tip
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_method_that_is_hidden_leaves_every_chart(page: Any) -> None:
    charts = page.locator("figure.live .chart > svg")
    before = page.locator("figure.live polyline").count()

    press(page, "local")

    assert charts.count() >= 2
    assert page.locator("figure.live polyline").count() == before // 2
    assert min(ticks(page)) >= 68  # the axis fits what is left
    pressed = page.locator(".legend button", has_text="local").evaluate_all("all => all.map(b => b.ariaPressed)")
    assert set(pressed) == {"false"}
    press(page, "local")
    assert page.locator("figure.live polyline").count() == before


def test_the_last_rounds_are_enlarged_and_everything_shown_again(page: Any) -> None:
    press(page, "local")
    before = ticks(page)

    press(page, "Zoom to the end")

    assert max(ticks(page)) - min(ticks(page)) < max(before) - min(before)
    press(page, "Show all")
    assert ticks(page) == before


def test_a_part_marked_with_the_mouse_is_enlarged(page: Any) -> None:
    picture = page.locator("#curves .chart > svg")
    picture.scroll_into_view_if_needed()
    before, box = ticks(page), picture.bounding_box()

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 120)
    page.mouse.up()

    assert min(ticks(page)) > min(before)
    picture.dblclick(position={"x": box["width"] / 2, "y": 60})
    assert ticks(page) == before


@pytest.mark.parametrize(
    ("section", "text"),
    [
        # Every client gains 0.2. In round 2, which validation chose, local has 51 to 54 and 53 to 56 per cent.
        ("gains", "client a of seed 0: +20.00"),
        ("clients", "local: median 53.50"),
        ("trade-off", "local: 70"),
    ],
)
def test_the_mark_under_the_pointer_shows_its_value(page: Any, section: str, text: str) -> None:
    marks = page.locator(f"#{section} g.value")
    tip = page.locator(f"#{section} .tip")

    found = set()
    for i in range(marks.count()):
        if marks.nth(i).is_visible():
            marks.nth(i).hover(force=True)
            found.add(tip.inner_text())

    assert any(text in one for one in found), found
    page.mouse.move(0, 0)
    assert not tip.is_visible()


def test_without_scripts_the_pictures_stay(chromium: Any, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()

    page.goto(report.as_uri())

    assert page.locator("#curves .scroll.wide svg").is_visible()
    context.close()


def test_table_that_is_cut_says_so_until_its_end_is_seen(page: Any) -> None:
    table, hint = page.locator("#comparison > .scroll"), page.locator("#comparison > .goes-on")
    cut = table.evaluate("place => place.scrollWidth > place.clientWidth + 1")
    assert hint.is_visible() == cut
    assert cut == (page.viewport_size["width"] < 600)

    table.evaluate("place => { place.scrollLeft = place.scrollWidth; }")

    page.locator("#comparison > .scroll.cut").wait_for(state="detached")
