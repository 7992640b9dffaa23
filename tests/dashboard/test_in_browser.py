"""What a person sees, in a real browser over a real server."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dashboard_data
import pytest
from dashboard_data import Store
from dashboard_pages import (
    CHARTS,
    box,
    click_row,
    first_row,
    open_page,
    pictures,
    says,
    settle,
    wait_for_charts,
    wait_for_other_pictures,
    wait_for_where,
)
from playwright.sync_api import Page, expect
from recorded_steps import WORDS, record_step
from servers.dashboard import dashboard

from dapo_core.db import open_reader
from dapo_core.run import metrics

HOSTILE = "<img src=x onerror='window.hacked=1'> **bold** $x^2$ :red[red] [link](javascript:window.hacked=1)"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A thousand runs, and one of each kind that matters, behind one server."""
    store = Store(tmp_path_factory.mktemp("store"))
    dashboard_data.many(store, 1000)
    at: dict[str, Any] = {"created_at": dashboard_data.START + 5000}
    store.run("healthy", steps=40, **at)
    dashboard_data.restarted(store)
    dashboard_data.failing(store)
    store.run("young", steps=1, **at)
    store.run("unborn", state="Created", **at)
    store.run("hostile", steps=3, tags={"note": HOSTILE}, owner=HOSTILE, message=HOSTILE, **at)
    store.event("hostile", "Odd", HOSTILE + "x" * 100_000, 2, "Warning")
    store.alert("hostile", "EntropyCollapse", 2, HOSTILE)
    objects = (store.folder / "objects").as_uri()
    for step in range(1, 41):
        record_step(objects, "healthy", step, text=HOSTILE)
    environment = {"DAPO_ACKNOWLEDGE_URL": store.url, "DAPO_STORE_URL": objects}
    with dashboard(store.url, store.folder / "server.log", environment) as url:
        yield SimpleNamespace(url=url, store=store)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = Store(tmp_path_factory.mktemp("empty"))
    with dashboard(store.url, store.folder / "server.log") as url:
        yield url


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "There are no runs yet"),
        ("/run", "There are no runs yet"),
        ("/run?run=gone", "There is no run gone, or you may not see it"),
        ("/compare", "Choose two or more runs"),
        ("/alerts", "No active alerts"),
        ("/help", "Only mixed groups have an advantage"),
    ],
    ids=["runs", "run", "unknown run", "compare", "alerts", "help"],
)
def test_a_store_without_runs(page: Page, empty: str, path: str, text: str) -> None:
    open_page(page, empty + path)
    says(page, text)


@pytest.mark.parametrize(
    ("run", "charts", "texts"),
    [
        pytest.param("healthy", 11, ["40 / 100", "Running"], id="healthy"),
        pytest.param("restarted", 11, ["restart at 20", "checkpoint at 20"], id="restarted"),
        pytest.param("failing", 11, ["NonFinite", "Lower optimizer.learningRate"], id="failing with NaN"),
        pytest.param("young", 11, ["1 / 100"], id="one step old"),
        pytest.param("unborn", 0, ["No step is finished yet"], id="before its first step"),
    ],
)
def test_the_page_of_a_run(page: Page, served: SimpleNamespace, run: str, charts: int, texts: list[str]) -> None:
    open_page(page, f"{served.url}/run?run={run}")
    if charts:
        wait_for_charts(page, charts)
    for text in texts:
        expect(page.locator('[data-testid="stMain"]')).to_contain_text(re.compile(re.sub(r"\s+", r"\\s*", text)))
    for chart in page.locator(CHARTS).all():
        assert chart.get_attribute("role") == "img" and "up to step" in (chart.get_attribute("aria-label") or "")


def test_a_thousand_runs_are_searched_and_one_is_opened(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/?order=name")
    search = page.get_by_role("textbox", name="Search")
    search.fill("run-0007")
    search.press("Enter")
    says(page, "1 of 1006 shown")
    expect(page).to_have_url(re.compile("search=run-0007"))
    page.evaluate("() => { window.loadedOnce = true }")
    click_row(page, "run-0007")
    page.wait_for_url(re.compile(r"/run\?run=run-0007"))
    wait_for_charts(page)
    says(page, "10 / 20")
    assert page.evaluate("() => window.loadedOnce"), "the application was loaded again"
    page.go_back()
    says(page, "1 of 1006 shown")


def test_the_pointer_and_the_zoom_are_those_of_all_charts(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=restarted")
    wait_for_charts(page, 11)
    x, y, width, height = box(page, 1)
    page.mouse.move(x + width * 0.4, y + height * 0.5)
    page.mouse.move(x + width * 0.5, y + height * 0.5)
    shown = wait_for_where(page, 10)
    assert len({text.splitlines()[0] for text in shown}) == 1, shown

    before = pictures(page)
    page.mouse.move(x + width * 0.3, y + height * 0.5)
    page.mouse.down()
    page.mouse.move(x + width * 0.4, y + height * 0.5)
    page.mouse.move(x + width * 0.7, y + height * 0.5)
    widths = page.evaluate("() => [...document.querySelectorAll('.u-select')].map((each) => each.clientWidth)")
    assert sum(width > 0 for width in widths) >= 10, "all charts show what will be shown"
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    page.mouse.move(0, 0)
    settle(page)
    says(page, "All steps")
    wait_for_other_pictures(page, before, before)
    assert pictures(page).keys() == before.keys()

    x, y, width, height = box(page, 0)
    page.mouse.dblclick(x + width * 0.5, y + height * 0.5)
    page.wait_for_url(lambda url: "from=" not in url)


def test_three_clicks_lead_from_a_curve_to_a_token(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=healthy")
    wait_for_charts(page, 11)
    x, y, width, height = box(page, 0)
    page.mouse.move(x + width * 0.4, y + height * 0.5)
    page.mouse.click(x + width * 0.5, y + height * 0.5)
    page.wait_for_url(re.compile(r"at=\d+"))
    page.locator('.dapo-group[data-recorded="true"]').last.click()
    page.wait_for_url(re.compile(r"group=g\d"))
    click_row(page, "right")
    page.wait_for_url(re.compile(r"response=\d"))
    tokens = page.locator(".dapo-tokens span")
    expect(tokens).to_have_count(len(WORDS))
    expect(tokens.first).to_have_text(HOSTILE)
    page.get_by_role("button", name="Clipped").click()
    expect(tokens.nth(3)).to_have_attribute("style", re.compile("209, 73, 91, 0.75"))
    tokens.nth(3).hover()
    says(page, "token 4: Probability under the rollout 0.4724")
    assert page.evaluate("() => window.hacked") is None
    link = page.url
    open_page(page, link)
    expect(page.locator(".dapo-tokens span")).to_have_count(len(WORDS))


def test_charts_are_walked_along_by_keys_and_by_a_finger(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=restarted")
    wait_for_charts(page, 11)
    chart = page.locator('[data-chart="reward"]')
    chart.focus()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        chart.press(key)
    assert set(wait_for_where(page, 10)) == {"step 38"}
    expect(page.locator(".dapo-voice")).to_contain_text("step 38: before filtering 0.6")
    touch = """(over) => { const { left, top, width } = over.getBoundingClientRect();
        over.dispatchEvent(new PointerEvent("pointerdown", { pointerId: 7, pointerType: "touch", bubbles: true,
            clientX: left + width / 2, clientY: top + 20 })); }"""
    page.locator('[data-chart="entropy"] .u-over').evaluate(touch)
    page.wait_for_function("() => document.querySelector('.dapo-where').textContent.startsWith('step 2')")
    for key in ("Home", "Shift+PageDown", "Enter"):
        chart.press(key)
    page.wait_for_url(re.compile("from=1&to=11"))


def test_a_link_shows_the_same_view(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=restarted")
    wait_for_charts(page, 11)
    page.get_by_role("radio", name="tokens").or_(page.get_by_role("button", name="tokens")).first.click()
    page.get_by_role("button", name="Smoothing and scale").click()
    page.get_by_text("Log scale").click()
    page.wait_for_url(re.compile("(?=.*x=tokens)(?=.*log=true)"))
    settle(page)
    link = page.url.replace("run=restarted", "run=restarted&smooth=0.5&from=5&to=25")
    open_page(page, link)
    wait_for_charts(page, 11)
    says(page, "Steps 5 to 25")
    first = pictures(page)
    page.get_by_role("button", name="Smoothing and scale").click()
    expect(page.get_by_label("Log scale")).to_be_checked()
    says(page, "0.50")
    open_page(page, page.url)
    wait_for_charts(page, 11)
    assert pictures(page) == first


def test_a_new_step_arrives_by_itself(page: Page, served: SimpleNamespace) -> None:
    run = served.store.run("growing", steps=3)
    open_page(page, f"{served.url}/run?run={run}")
    wait_for_charts(page, 11)
    before = pictures(page)
    tag = "() => { document.querySelectorAll('canvas').forEach((each) => { each.dataset.kept = '1' }) }"
    page.evaluate(tag)
    served.store.steps(run, range(4, 9))
    says(page, "8 / 100")
    page.wait_for_selector('.dapo-grid[data-step="8"]')
    wait_for_other_pictures(page, before, ("reward", "entropy", "length"))
    assert page.locator("canvas[data-kept]").count() >= 11, "the charts are those of before, not new ones"
    grey = """() => [...document.querySelectorAll('.stElementContainer')].map((each) => {
        each.dataset.stale = 'true';
        return getComputedStyle(each).opacity;
    }).filter((opacity) => opacity !== '1')"""
    assert page.evaluate(grey) == [], "what is about to be replaced is not grey meanwhile"


def test_a_chart_is_saved_as_png_and_as_csv(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=restarted")
    wait_for_charts(page, 11)
    card = page.locator('[data-chart="reward"]')
    with page.expect_download() as saved:
        card.get_by_role("button", name="Save Reward as PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        card.get_by_role("button", name="Save the points of Reward as CSV").click()
    head, *rows = saved.value.path().read_text().splitlines()
    assert head == f"run,step,attempt,unix_seconds,{metrics.REWARD_GENERATED},{metrics.REWARD_TRAINED}"
    assert len(rows) == 40 and rows[-1].startswith("restarted,40,2,")


def test_the_keyboard_reaches_the_help_and_the_range(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/run?run=restarted")
    wait_for_charts(page, 11)
    page.get_by_role("button", name="Steps: all").press("Enter")
    page.get_by_role("spinbutton", name="From step").fill("10")
    page.get_by_role("spinbutton", name="To step").fill("20")
    page.get_by_role("button", name="Show these steps").press("Enter")
    page.wait_for_url(re.compile("from=10&to=20"))
    settle(page)  # until then the link may be replaced under the key
    page.get_by_role("link", name="What Reward means").press("Enter")
    page.wait_for_url(re.compile(r"/help\?topic=reward"))
    says(page, "read the first for progress")


def test_what_others_wrote_is_text(page: Page, served: SimpleNamespace) -> None:
    for view in ("Curves", "Timeline", "Job"):
        open_page(page, f"{served.url}/run?run=hostile&view={view}")
        says(page, "hostile")
    open_page(page, f"{served.url}/run?run=hostile")
    says(page, "**bold** $x^2$ :red[red] [link](javascript:window.hacked=1)")
    open_page(page, f"{served.url}/?search=hostile")
    open_page(page, f"{served.url}/alerts")
    assert page.evaluate("() => window.hacked") is None


@pytest.mark.parametrize("width", [390], ids=["phone"])
@pytest.mark.parametrize("path", ["/", "/run?run=restarted", "/compare?runs=healthy&runs=restarted", "/alerts"])
def test_a_phone(page: Page, served: SimpleNamespace, path: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    open_page(page, served.url + path)
    page.wait_for_timeout(300)
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(page: Page, served: SimpleNamespace, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    open_page(page, f"{served.url}/compare?runs=healthy&runs=restarted")
    wait_for_charts(page, 4)
    color = page.evaluate("() => getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    channels = [int(each) for each in re.findall(r"\d+", color)[:3]]
    assert (max(channels) < 60) == (scheme == "dark")


def test_what_was_ticked_is_acknowledged_wherever_its_row_is_by_then(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.url}/alerts?rule=NonFinite&rule=LengthExplosion")
    click_row(page, "failing", tick=True)
    expect(page.get_by_role("button", name="Acknowledge 1")).to_be_enabled()
    served.store.alert("healthy", "LengthExplosion", 39)
    expect(first_row(page)).to_contain_text("LengthExplosion")
    page.get_by_role("button", name="Acknowledge 1").click()
    expect(page.get_by_role("button", name="Acknowledge 0")).to_be_visible()
    seen = {(alert.run_id, alert.rule) for alert in open_reader(served.store.url).alerts() if alert.acknowledged_by}
    assert seen == {("failing", "NonFinite")}
