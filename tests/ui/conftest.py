"""A real browser on the page of a module's `server`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from report.browser import Browser
from ui.page_server import Page, PageServer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def logged_in(browser: Browser, server: PageServer) -> Page:
    """The browser has the cookie of the server."""
    browser.open(server.address)
    return Page(browser, server)


@pytest.fixture
def page(logged_in: Page) -> Page:
    """An empty page, with nothing on the console yet."""
    logged_in.browser.open("about:blank")
    logged_in.browser.events.clear()
    return logged_in
