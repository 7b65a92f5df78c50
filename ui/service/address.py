"""The page's public address, and the links that lead back to it."""

import os
from typing import Any
from urllib.parse import urlencode, urlsplit

import gradio as gr
from gradio.route_utils import get_request_origin

from kvq_core.settings import settings
from kvq_core.spec import ComparisonSpec
from kvq_core.spec.links import encode


def own_address() -> str:
    """This instance's address as it is configured, ready for a query; "" where it is not.

    On a Space that is the Space's own page, whose address the frame inside does not share.
    """
    if address := settings().address:
        return address
    if space := os.environ.get("SPACE_ID"):
        return f"https://huggingface.co/spaces/{space}"
    host = os.environ.get("SPACE_HOST")
    return f"https://{host}/" if host else ""


def page_address(request: gr.Request) -> str:
    """Where whoever asks reaches this page, ready for a query: nothing to tell others.

    Where the instance's own address is not configured, it is the host that a proxy passes on, as Gradio reads it; else
    the page's address as the browser told it.
    """
    if address := own_address():
        return address
    headers: Any = request.headers
    page = urlsplit(headers.get("referer") or headers.get("origin") or "")
    if not headers.get("x-forwarded-host") and page.scheme in ("http", "https") and page.netloc:
        return f"{page.scheme}://{page.netloc}{page.path.rstrip('/')}/"
    origin = get_request_origin(request, "")  # type: ignore[arg-type]
    return f"{origin.scheme}://{origin.netloc.decode()}{_root(request)}/"


def link(run_id: str, request: gr.Request, versus: str | None = None) -> str:
    """The address that opens a run, with another beside it where one is given."""
    return f"{page_address(request)}?{query(run_id, versus)}"


def lasting_link(run_id: str) -> str:
    """The address that opens a run, for files that are kept and handed on; "" where the instance does not know its own:
    what a request says of it is that visitor's word alone."""
    address = own_address()
    return address and f"{address}?{query(run_id)}"


def query(run_id: str, versus: str | None = None) -> str:
    return urlencode({"run": run_id} | ({"vs": versus} if versus else {}))


def own_query(shown: dict[str, Any]) -> str:
    """What stands in the address bar for what is shown: a step of the tour, or a run; nothing for the run that an
    empty page shows."""
    if shown.get("home"):
        return ""
    if "step" in shown:
        return urlencode({"learn": shown["step"] + 1})
    return query(shown["run"], shown.get("vs"))


def comparison_link(spec: ComparisonSpec, request: gr.Request) -> str:
    """The address that fills the form. Raises SpecError where the comparison is too long for a link."""
    return f"{page_address(request)}?c={encode(spec)}"


def _root(request: gr.Request) -> str:
    """The path a proxy mounts the page at, if it says so."""
    scope = getattr(request.request, "scope", None) or {}
    return str(scope.get("root_path") or "").rstrip("/")
