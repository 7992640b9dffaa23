"""What a test asks of a page in the browser."""

from collections.abc import Iterable, Mapping, Sequence

from playwright.sync_api import Locator, Page, expect

CHARTS = ".dapo-chart .dapo-plot"
# A page is also idle before the server has heard of it: then there is nothing on it.
_IDLE = """() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'
    && document.querySelector('[data-testid=stMain] .stElementContainer') !== null"""
_DRAWN = f"""(count) => document.querySelector('.dapo-grid[data-drawn]') !== null
    && document.querySelectorAll('{CHARTS} canvas').length >= count"""
# A number for the picture of each chart, by its key.
_PICTURES = """() => Object.fromEntries([...document.querySelectorAll('.dapo-chart')].map((each) => {
    const text = each.querySelector('canvas').toDataURL();
    let sum = 0;
    for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) | 0;
    return [each.dataset.chart, sum];
}))"""
_WHERE = "() => [...document.querySelectorAll('.dapo-where')].map((each) => each.textContent).filter((text) => text)"


def open_page(page: Page, url: str) -> None:
    """Go there and wait until the server's script has run; no error is shown."""
    page.goto(url)
    settle(page)


def settle(page: Page) -> None:
    """Wait until the script has run, and see that it ran well."""
    page.wait_for_selector('[data-testid="stApp"]')
    page.wait_for_function(_IDLE)
    assert page.locator('[data-testid="stException"]').count() == 0, page.locator(
        '[data-testid="stException"]'
    ).inner_text()


def wait_for_charts(page: Page, count: int = 1) -> None:
    """Wait until that many charts are drawn, and all that there are."""
    page.wait_for_function(_DRAWN, arg=count)


def pictures(page: Page) -> dict[str, int]:
    """What each chart shows, as a number, once that is the same for a while: fonts come late."""
    before: dict[str, int] = {}
    now = _pictures(page)
    while now != before:
        page.wait_for_timeout(200)
        before, now = now, _pictures(page)
    return now


def wait_for_other_pictures(page: Page, before: Mapping[str, int], keys: Iterable[str]) -> None:
    """Wait until these charts show something else."""
    script = (
        f"([before, keys]) => {{ const now = ({_PICTURES})(); return keys.every((key) => now[key] !== before[key]) }}"
    )
    page.wait_for_function(script, arg=[dict(before), list(keys)])


def _pictures(page: Page) -> dict[str, int]:
    found: dict[str, int] = page.evaluate(_PICTURES)
    return found


def first_row(page: Page) -> Locator:
    """The first row of the page's table, as the browser writes it down for screen readers once the table is drawn."""
    return page.get_by_test_id("stDataFrame").locator('[aria-rowindex="2"]')


def click_row(page: Page, text: str, *, tick: bool = False) -> None:
    """Click the first row of the table once it holds this text: open it, or tick its box."""
    expect(first_row(page)).to_contain_text(text)
    page.get_by_test_id("stDataFrame").click(position={"x": 18 if tick else 120, "y": 52})


def says(page: Page, *texts: str) -> None:
    """The page shows each of these."""
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible()


def box(page: Page, at: int) -> tuple[float, float, float, float]:
    """x, y, width and height of the chart of that number."""
    found = page.locator(CHARTS).nth(at).bounding_box()
    assert found is not None
    return found["x"], found["y"], found["width"], found["height"]


def wait_for_where(page: Page, count: int) -> Sequence[str]:
    """What the charts say of the place under the pointer, once so many say something."""
    page.wait_for_function(f"(count) => ({_WHERE})().length >= count", arg=count)
    shown: list[str] = page.evaluate(_WHERE)
    return shown
