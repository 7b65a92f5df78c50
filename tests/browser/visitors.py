"""One browser for all files of a worker, and visitors who come to it as strangers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# As a browser keeps it whose visitor left the form unfolded; forbidden on pages that are none of a server.
FORM_OPEN = "try { localStorage.setItem('kvq-form-open', '1'); } catch {}"
LEFT = "Failed to fetch dynamically imported module"  # the page was left, or its server was, while a script came


class Playing:
    """Playwright and its browser. Its event loop is this thread's running one only while a file is at work with it, for
    other files run their own."""

    def __init__(self, chromium: str):
        from playwright.sync_api import sync_playwright

        self.path, self._browser = chromium, None
        self.playwright = sync_playwright().start()
        self._loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)

    @contextmanager
    def at_work(self) -> Iterator[Any]:
        """The browser; another one where it has crashed."""
        asyncio._set_running_loop(self._loop)
        try:
            if self._browser is None or not self._browser.is_connected():
                self._browser = self.playwright.chromium.launch(executable_path=self.path, args=["--no-sandbox"])
            yield self._browser
        finally:
            asyncio._set_running_loop(None)

    def stop(self) -> None:
        asyncio._set_running_loop(self._loop)
        self.playwright.stop()


@contextmanager
def visits(browser, reads_console: bool = True) -> Iterator[Callable]:
    """``open_page`` for a fixture of more than one test. ``reads_console``: not of pages that are left or lose their
    server while an answer is under way, for Gradio complains of that. ``reading``: as one who never unfolded the
    form."""
    complaints: list[str] = []
    visitors = []

    def visit(url: str, width: int = 1280, height: int = 900, reading: bool = False):
        visitors.append(_Visitor.of(browser, reading))
        return visitors[-1].come(url, {"width": width, "height": height}, listeners)

    def heard(message) -> None:
        if message.type == "error" and reads_console:
            complaints.append(message.text)

    def failed(error) -> None:
        if reads_console or LEFT not in str(error):
            complaints.append(str(error))

    def asked(dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    listeners = {"console": heard, "pageerror": failed, "dialog": asked}
    try:
        yield visit
    finally:
        for visitor in visitors:
            visitor.leave()
    assert complaints == [], complaints


@dataclass
class _Visitor:
    """A browser profile with a tab, both somebody else's once their visitor left: who comes has forgotten all but
    Gradio's scripts. Fetching and compiling them anew took half of what a page costs, a new tab a quarter."""

    context: Any
    tab: Any
    free: list[Any]
    sites: set[str] = field(default_factory=set)
    heard: dict[str, Callable] = field(default_factory=dict)

    @classmethod
    def of(cls, browser, reading: bool) -> "_Visitor":
        free = _free.setdefault((browser, reading), [])
        if free:
            return cls(*free.pop(), free)
        context = browser.new_context()
        if not reading:
            context.add_init_script(FORM_OPEN)
        return cls(context, context.new_page(), free)

    def come(self, url: str, size: dict[str, int], heard: dict[str, Callable]):
        """The page of that address."""
        self.sites.add("/".join(url.split("/")[:3]))
        self.heard = heard
        self.tab.set_viewport_size(size)
        self.tab.set_default_timeout(60_000)
        for event, listener in heard.items():
            self.tab.on(event, listener)
        self.tab.goto(url)
        self.tab.wait_for_selector("#lanes:not([inert]) #lane-row-0", state="attached")
        return self.tab

    def leave(self) -> None:
        """Forget everything; the profile is lost where that cannot be."""
        for page in self.context.pages:
            if page != self.tab:
                page.close()
        if self.tab.is_closed():
            self.tab = self.context.new_page()
        else:
            for event, listener in self.heard.items():
                self.tab.remove_listener(event, listener)
            self.tab.unroute_all(behavior="ignoreErrors")
            self.tab.evaluate("sessionStorage.clear()")
            self.tab.goto("about:blank")
            self.tab.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
        self.context.set_offline(False)
        self.context.clear_permissions()
        self.context.clear_cookies()
        session = self.context.new_cdp_session(self.tab)
        for site in self.sites:
            session.send("Storage.clearDataForOrigin", {"origin": site, "storageTypes": "local_storage,indexeddb"})
        session.detach()
        self.free.append((self.context, self.tab))


_free: dict[Any, list[Any]] = {}
