"""Open the demo's page in the system's Chromium, for its test and for its picture.

python -m tests.support.browser http://127.0.0.1:7860 'A sentence.' docs/results/demo.png
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PATIENCE = 60_000  # milliseconds, enough on a busy machine


@contextmanager
def opened(address: str, requests: list[str], *, scale: float = 1.0) -> Iterator[Page]:
    """Open a page 1,200 points wide in a new browser; its requests are added to ``requests``."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        size = {"width": 1200, "height": 100}
        page = browser.new_page(viewport=size, device_scale_factor=scale)
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        yield page
        browser.close()


def translate(page: Page, sentence: str) -> None:
    """Type a sentence, and ask for its translations."""
    page.locator("#sentence textarea").fill(sentence)
    page.locator("#translate").click()


def main() -> None:
    """Draw the page with a sentence translated by the systems that are chosen by default."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("address")
    parser.add_argument("sentence")
    parser.add_argument("picture", metavar="OUT.png")
    args = parser.parse_args()
    with opened(args.address, [], scale=4 / 3) as page:
        translate(page, args.sentence)
        page.locator("#system-0 img").first.evaluate("image => image.decode()")
        page.screenshot(path=args.picture, full_page=True, animations="disabled")


if __name__ == "__main__":
    main()
