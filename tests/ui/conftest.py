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


@pytest.fixture
def page(browser: Browser, server: PageServer) -> Page:
    """The start page, with nothing on the console yet."""
    browser.open(server.address)
    browser.events.clear()
    return Page(browser, server)
