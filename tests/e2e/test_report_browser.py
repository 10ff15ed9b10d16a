"""The report in a browser: wide and narrow, light and dark, by pointer, by keyboard, and on paper."""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rhobust.report.gather import gather
from rhobust.report.page import to_html
from rhobust.support.files import write_json
from tests.reports import NAMES, tiny_runs

WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

CONTRASTS = """() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a !== 0) throw new Error("half transparent: " + at.outerHTML.slice(0, 80));
    }
    return [255, 255, 255];
  };
  const texts = "h1, h2, h3, p, li, a, th, td, caption, figcaption, summary, strong, code, dt, dd, footer, span, text";
  return [...document.querySelectorAll(texts)].filter(one => one.textContent.trim()).map(one => {
    const style = getComputedStyle(one);
    const [a, b] = [light(channels(one.closest("svg") ? style.fill : style.color)), light(behind(one))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.tagName + " " + one.textContent.trim().slice(0, 40)];
  });
}"""

BOXES = """selector => [...document.querySelectorAll(selector)].filter(one => one.checkVisibility()).map(one => {
  const box = one.getBoundingClientRect();
  return [box.left, box.top + scrollY, box.right, box.bottom + scrollY];
})"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return tiny_runs(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def page_path(runs: list[Path]) -> Path:
    """A report with a flag and with an audit, so that everything there is can be looked at."""
    report = gather(runs, samples=40)
    evaluation = json.loads((runs[0] / "evaluation.json").read_text())
    evaluation["flags"] = [{"check": "gradients", "message": "a flag that was put here " * 5}]
    write_json(runs[0] / "evaluation.json", evaluation)
    judged = {
        "epsilon": 0.2,
        "samples": 40,
        "clean": 0.1,
        "ours": 0.25,
        "referee": 0.5,
        "attacks": {"apgd-ce": 0.5},
        "flags": [],
    }
    kept = {"model": evaluation["model"], "settings": {"epsilon": 0.2}, "environment": {}}
    write_json(runs[0] / "audit.json", kept | judged)
    report = gather(runs, samples=40)
    out = runs[0].parent / "report.html"
    out.write_text(to_html(report, out))
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("BROWSER ABSENT: there is no chromium on the path, so the report was not looked at")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module", params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=str)
def page(request: pytest.FixtureRequest, browser: Any, page_path: Path) -> Iterator[Any]:
    """The page from disk, without a network; whatever it says or asks for is an error."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    outside = lambda url: url != page_path.as_uri() and not url.startswith("data:")  # noqa: E731
    opened.on("request", lambda asked: complaints.append(asked.url) if outside(asked.url) else None)
    opened.goto(page_path.as_uri())
    yield opened
    assert complaints == []
    context.close()


def test_everything_fits_and_nothing_overlaps(page: Any) -> None:
    narrow = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= narrow
    figures = page.evaluate(BOXES, "figure, figure svg, .example img")
    assert len(figures) > 20
    assert all(right - left > 30 and bottom - top > 30 for left, top, right, bottom in figures)
    boxes = page.evaluate(BOXES, ".card, .scroll, .note, pre, dl, .legend")
    assert len(boxes) > 15
    assert all(left >= 0 and right <= narrow for left, _, right, _ in boxes)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for left_, top_, right_, bottom_ in boxes[:i]:
            assert right <= left_ or right_ <= left or bottom <= top_ or bottom_ <= top
    # Inside a figure, its text stays in the card.
    spills = """[...document.querySelectorAll("figure text")].filter(text => {
      const [inner, outer] = [text.getBoundingClientRect(), text.closest("figure").getBoundingClientRect()];
      return inner.left < outer.left || inner.right > outer.right || inner.bottom > outer.bottom;
    }).map(text => text.textContent)"""
    assert page.evaluate(spills) == []


def test_text_in_figures_can_be_read(page: Any) -> None:
    sizes = page.evaluate("""[...document.querySelectorAll("figure text")].map(text => {
      const svg = text.ownerSVGElement;
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      return [scale * parseFloat(getComputedStyle(text).fontSize), text.getBoundingClientRect().height];
    })""")
    assert len(sizes) > 50
    assert min(size for size, _ in sizes) >= 9
    assert min(height for _, height in sizes) >= 9


def test_text_stands_out_from_what_is_behind_it(page: Any) -> None:
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 200
    ratio, where = min(contrasts)
    assert ratio >= 4.5, where


def test_every_point_tells_its_value(page: Any, runs: list[Path]) -> None:
    found = page.evaluate('[...document.querySelectorAll("svg use title")].map(title => title.textContent)')
    kept = [json.loads((run / "evaluation.json").read_text())["attacked"] for run in runs]
    names = {"cascade": "cascade", "worst": "worst", "pgd": "PGD", "fgsm": "FGSM"}
    for cells in zip(*kept, strict=True):
        attack, epsilon = cells[0]["attack"], cells[0]["epsilon"]
        if attack in names:
            erm, spgd, first, second = (cell["error"] for cell in cells)
            both = f"{100 * ((first + second) / 2):.1f} ± {100 * (abs(first - second) / 2):.1f}"
            for name, error in zip(NAMES, (f"{100 * erm:.1f}", f"{100 * spgd:.1f}", both), strict=True):
                assert found.count(f"{name}, {names[attack]} {epsilon:g}: {error} %") == 1
    drift = json.loads((runs[1] / "shifts.json").read_text())
    assert f"spgd, mean over shifts: {100 * drift['mean']:.1f} %" in found
    certificate = json.loads((runs[0] / "certificates.json").read_text())["certificates"][-1]
    values = f"proved {certificate['bound']:.3g}, attained {certificate['attained']:.3g}"
    assert f"erm, rho {certificate['radius']:g}: {values}" in found
    # Where the pointer rests on a point, a value shows (another's, where two points are in one place).
    silent = page.evaluate("""[...document.querySelectorAll("svg use:has(title)")].filter(use => {
      use.scrollIntoView({block: "center", behavior: "instant"});
      const box = use.getBoundingClientRect();
      const met = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
      return !met?.querySelector("title");
    }).map(use => use.textContent)""")
    assert silent == []


def test_structure_for_those_who_do_not_see_it(page: Any) -> None:
    levels = page.evaluate('[...document.querySelectorAll("h1, h2, h3, h4")].map(head => +head.tagName[1])')
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    for landmark in ("header", "nav[aria-label]", "main", "footer"):
        assert page.locator(f"body > {landmark}").count() == 1
    missing = """[
      ...[...document.querySelectorAll("table")].filter(table => !table.caption),
      ...[...document.querySelectorAll("th")].filter(head => !head.scope),
      ...[...document.querySelectorAll("svg")].filter(svg => svg.role !== "img" || svg.ariaLabel.length < 20),
      ...[...document.querySelectorAll("svg")].filter(svg => !svg.closest("figure")?.querySelector("figcaption")),
      ...[...document.querySelectorAll("img:not(.swatch)")].filter(image => !image.alt),
      ...[...document.querySelectorAll(".swatch")].filter(image => image.getAttribute("alt") !== ""),
      ...[...document.querySelectorAll("a")].filter(link => !document.querySelector(link.hash)),
      ...[...document.querySelectorAll(".scroll")].filter(part => part.tabIndex !== 0 || !part.ariaLabel),
    ].map(element => element.outerHTML.slice(0, 100))"""
    assert page.evaluate(missing) == []
    ids = page.evaluate('[...document.querySelectorAll("[id]")].map(element => element.id)')
    assert len(ids) == len(set(ids))


def test_the_keyboard_reaches_everything_and_sees_where_it_is(page: Any) -> None:
    page.reload()  # from the top
    page.evaluate('document.querySelectorAll("details").forEach(part => { part.open = true; })')
    expected = page.evaluate('document.querySelectorAll("a, summary, .scroll").length')
    reached = []
    for _ in range(expected):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("""() => {
              const [at, style] = [document.activeElement, getComputedStyle(document.activeElement)];
              const box = at.getBoundingClientRect();
              const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
              return [at.tagName + " " + (at.ariaLabel ?? at.textContent.trim()), outlined && box.right > 0];
            }""")
        )
    assert reached[0][0] == "A Skip to the report"
    assert "DIV Error in percent" in [name for name, _ in reached]
    assert len({name for name, _ in reached}) == expected
    assert all(seen for _, seen in reached), reached
    if page.viewport_size["width"] < 1000:  # a wide table moves inside its own region
        region = page.get_by_role("region", name="Error in percent", exact=True)
        region.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.reload()


def test_on_paper_nothing_is_hidden(page: Any) -> None:
    size = page.viewport_size
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 between its margins
    try:
        tables = page.locator("table").count()
        assert len(page.evaluate(BOXES, "table")) == tables  # those in closed details too
        for part in ("h1", "h2", "table", "figure svg", ".note", "pre", ".example img", "dl"):
            boxes = page.evaluate(BOXES, part)
            assert boxes, part
            assert all(right > left and bottom > top for left, top, right, bottom in boxes), part
        assert page.evaluate("document.documentElement.scrollWidth") <= 718
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ratio, where = min(page.evaluate(CONTRASTS))
        assert ratio >= 4.5, where
    finally:
        page.emulate_media(media="screen")
        page.set_viewport_size(size)
