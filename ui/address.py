"""The page's public address, and the links that lead back to it."""

import os
from typing import Any
from urllib.parse import urlencode, urlsplit

import gradio as gr
from gradio.route_utils import get_request_origin

from kvq_core.links import encode
from kvq_core.spec import ComparisonSpec


def page_address(request: gr.Request) -> str:
    """Where people reach this page, ready for a query.

    On a Space that is the Space's own page, whose address the frame inside does not share. Behind a proxy it is the
    host the proxy passes on, as Gradio reads it; else the page's address as the browser told it.
    """
    if space := os.environ.get("SPACE_ID"):
        return f"https://huggingface.co/spaces/{space}"
    if host := os.environ.get("SPACE_HOST"):
        return f"https://{host}/"
    headers: Any = request.headers
    page = urlsplit(headers.get("referer") or headers.get("origin") or "")
    if not headers.get("x-forwarded-host") and page.scheme in ("http", "https") and page.netloc:
        return f"{page.scheme}://{page.netloc}{page.path.rstrip('/')}/"
    origin = get_request_origin(request, "")  # type: ignore[arg-type]
    return f"{origin.scheme}://{origin.netloc.decode()}{_root(request)}/"


def link(run_id: str, request: gr.Request, versus: str | None = None) -> str:
    """The address that opens a run, with another beside it where one is given."""
    return f"{page_address(request)}?{query(run_id, versus)}"


def query(run_id: str, versus: str | None = None) -> str:
    return urlencode({"run": run_id} | ({"vs": versus} if versus else {}))


def own_query(shown: dict[str, Any]) -> str:
    """What stands in the address bar for what is shown: a step of the tour, or a run."""
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
