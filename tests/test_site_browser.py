"""What Chromium makes of the built pages: all formulas drawn, nothing from elsewhere, no page wider than a phone.

`make crawl` runs this on the pages that `make docs` built.
"""

import functools
import http.server
import os
import pathlib
import threading

import pytest

webdriver = pytest.importorskip("selenium.webdriver")

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
WIDTHS = {"desktop": 1280, "phone": 390}
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FACTS = """
const wide = [...document.querySelectorAll("article *")].filter(each => {
    const scrolls = each.closest(
        "pre, .md-typeset__scrollwrap, .md-typeset__table, .katex-display, svg, p:has(img.wide)"
    );
    return !scrolls && each.getBoundingClientRect().right > innerWidth + 1;
});
return {
    width: document.documentElement.scrollWidth,
    inner: innerWidth,
    wide: wide.slice(0, 3).map(each => each.outerHTML.slice(0, 120)),
    requests: performance.getEntriesByType("resource").map(each => each.name),
    formulas: document.querySelectorAll(".arithmatex").length,
    drawn: document.querySelectorAll(".arithmatex .katex").length,
    errors: [...document.querySelectorAll(".katex-error")].map(each => each.textContent),
    pictures: [...document.images].filter(each => each.complete && !each.naturalWidth).map(each => each.src),
};
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served():
    folder = ROOT / os.environ.get("SITE", "site")
    if not (folder / "index.html").exists():
        pytest.skip("the pages are not built: `make docs`")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    yield [address + str(path.parent.relative_to(folder)) + "/" for path in sorted(folder.rglob("index.html"))]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    try:
        driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    except Exception as error:
        pytest.skip(f"Chromium does not start: {error}")
    yield driver
    driver.quit()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=list(WIDTHS))
def test_every_page(width, browser, served):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    faults = []
    for page in served:
        browser.get(page)
        found = browser.execute_script(FACTS)
        name = page.split("/", 3)[3]
        if found["width"] > found["inner"]:
            faults.append(f"{name}: {found['width']} pixels wide: {found['wide']}")
        faults += [f"{name}: loads {each}" for each in found["requests"] if not each.startswith("http://127.0.0.1:")]
        faults += [f"{name}: KaTeX does not know {each}" for each in found["errors"]]
        faults += [f"{name}: no picture at {each}" for each in found["pictures"]]
        if found["formulas"] != found["drawn"]:
            faults.append(f"{name}: {found['drawn']} of {found['formulas']} formulas are drawn")
    faults += [entry["message"] for entry in browser.get_log("browser")]
    assert not faults, "\n".join(faults)
