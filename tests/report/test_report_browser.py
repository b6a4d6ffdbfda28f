"""The pages in a real browser: no request leaves, nothing complains, and what can be clicked does what it says."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on the PATH: install the package chromium"),
]
PAGES = ("index", "01_first_token", "02_fails", "03_killed", "04_after")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install --editable '.[test]'"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, finished):
    """Opens a page by name; at the end, no request may have left and nothing may have been said on the console."""
    opened, complaints = [], []

    def visit(name, folder=finished, **options):
        context = browser.new_context(**options)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield visit
    for context in opened:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_its_images_load(visit, name, width):
    page = visit(name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length") == 0
    assert page.locator("h1").count() == 1


def test_a_verdict_takes_the_width_of_a_phone(visit):
    page = visit("01_first_token", viewport={"width": 390, "height": 800})
    assert page.locator(".words .badge").count() and not page.locator(".claims").is_visible()
    page.get_by_text("with the value here, the limit and the reason").click()
    cells = page.locator(".claims td:first-child, .claims .reason")
    widths = cells.evaluate_all("cells => cells.map((cell) => cell.getBoundingClientRect().width)")
    assert widths and min(widths) > 300


def test_images_are_there(visit):
    assert visit("01_first_token").locator("figure img").count() == 1
    assert visit("index").locator(".card img").count() == 1


def test_the_front_page_is_short_on_a_phone(visit):
    page = visit("index", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollHeight") < 8000
    claim = page.locator("details.claim").first
    assert not claim.is_visible()
    page.locator("details.group > summary").first.click()
    assert claim.is_visible()


def test_links_lead_to_pages_and_cells(visit):
    page = visit("index")
    page.get_by_role("link", name="Seconds, not minutes").click()
    assert page.url.endswith("/01_first_token.html")
    page.get_by_role("link", name="the failure").click()
    assert page.url.endswith("/02_fails.html")
    page.locator(".alert a").click()
    assert page.url.endswith("#cell-4")
    assert page.locator("#cell-4 .error").is_visible()
    page.get_by_role("link", name="All results").click()
    assert page.url.endswith("/index.html")


def test_a_table_sorts_by_value_both_ways(visit):
    page = visit("01_first_token")
    table = page.locator(".output table").first
    times = lambda: table.locator("tbody td:nth-of-type(1)").all_inner_texts()  # noqa: E731
    header = table.get_by_role("button", name="time")
    assert [name.strip() for name in table.locator("thead th").all_inner_texts()] == ["tensor \\ part", "time"]
    header.click()
    assert times() == ["4.2 ms", "2 s", "10 s"]
    assert table.locator("th[aria-sort=ascending]").count() == 1
    header.click()
    assert times() == ["10 s", "2 s", "4.2 ms"]


def test_a_figure_enlarges_and_closes(visit):
    page = visit("01_first_token")
    assert not page.locator("dialog").is_visible()
    page.locator("figure button").click()
    assert page.locator("dialog img").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator("figure img").bounding_box()["width"] <= 390, "the whole figure fits a phone"
    page.locator("figure button").click()
    assert page.locator("dialog img").bounding_box()["width"] > 800, "on a phone it grows, and the dialog scrolls"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_code_of_a_mechanism_is_open_and_other_code_is_folded_but_there(visit):
    page = visit("01_first_token")
    assert page.locator("details.code .highlight:visible").count() == 1
    assert "pd.DataFrame" in page.locator("details.code .highlight:visible").inner_text()
    code = page.locator("details.code .highlight").first
    assert not code.is_visible()
    page.get_by_role("button", name="Show all code").click()
    assert code.is_visible()
    assert "profile" in code.inner_text()
    page.get_by_role("button", name="Show all code").click()
    assert page.locator("details.code .highlight:visible").count() == 1
    assert page.locator("details.code summary:visible").count() == 1


@pytest.mark.parametrize("permissions", [["clipboard-read", "clipboard-write"], []])
def test_text_to_paste_is_copied_by_a_button_and_is_text(visit, permissions):
    """Where a browser gives a page of a file no clipboard, the text is selected and copied as by hand."""
    page = visit("01_first_token", permissions=permissions)
    if not permissions:
        page.evaluate("delete Navigator.prototype.clipboard")
    page.get_by_text("Text to paste", exact=True).click()
    button = page.locator("button.copy")
    button.click()
    page.wait_for_function("document.querySelector('button.copy').textContent === 'Copied'", timeout=10_000)
    told = page.evaluate("navigator.clipboard.readText()" if permissions else "getSelection().toString()")
    assert told.startswith("| a |\n<script>alert(1)</script>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_chosen(visit, scheme):
    page = visit("index", color_scheme=scheme)
    theme = lambda: page.evaluate("document.documentElement.dataset.theme")  # noqa: E731
    lightness = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 128")  # noqa: E731
    assert theme() == scheme
    assert lightness() == (scheme == "light")
    page.get_by_role("button", name="Theme").click()
    assert theme() != scheme
    page.reload()
    assert theme() != scheme, "the choice is remembered"


def test_hostile_names_are_seen_as_text(visit):
    page = visit("01_first_token")
    assert "<script>alert(1)</script>" in page.locator(".output table").first.inner_text()
    assert "<script>alert(1)</script>" in visit("index").locator(".facts").first.inner_text()


def test_the_contents_list_leads_to_headings(visit):
    page = visit("01_first_token", viewport={"width": 1280, "height": 800})
    page.locator(".toc").get_by_role("link", name="Measure", exact=True).click()
    assert page.evaluate("document.querySelector(location.hash).innerText") == "Measure"


@pytest.mark.parametrize("name", ["index", "01_first_token"])
def test_a_page_prints_on_white_without_its_controls(visit, name):
    page = visit(name, color_scheme="dark", viewport={"width": 760, "height": 1075})
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    assert not page.locator(".bar").is_visible()
    assert page.locator("details.code:not([open]) > summary:visible").count() == 0
    assert page.locator("img").first.is_visible()


def test_the_policy_of_a_page_stops_what_escaping_might_miss(browser, finished, tmp_path):
    text = (finished / "index.html").read_text()
    attack = "<img src=x onerror='window.hit = 1'><script>window.hit = 1</script>"
    (tmp_path / "broken.html").write_text(text.replace("<main>", f"<main>{attack}"))
    page = browser.new_page()
    page.goto((tmp_path / "broken.html").as_uri())
    assert page.evaluate("window.hit") is None
    page.close()
