"""Who may ask a private instance: no web page of another site, under whatever name it reaches this machine."""

import os
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvq_core.settings import Settings

# What a proxy says of the page's address, to Gradio and to ui/service/address.py
FORWARDED = (b"x-forwarded-host", b"x-forwarded-proto", b"x-gradio-server")
ADDRESSES = (b"host", *FORWARDED)


class KnownHosts:
    """Answers 403 to a Host that is none of a private instance's names, and to an Origin that is another page's; takes
    a proxy's word on the address from the proxies of FORWARDED_ALLOW_IPS alone.

    A name that somebody's DNS points to this machine would make their page one of this server ("DNS rebinding"). A
    public instance is open to everybody under names that only its operator knows.
    """

    def __init__(self, app: ASGIApp, found: Settings):
        self.app, self._public = app, found.public
        own = socket.gethostname().lower()
        self._address = urlsplit(found.address).hostname
        self._names = {"localhost", own, f"{own}.local", found.host.lower(), self._address} - {None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            if not _from_a_proxy(scope):
                scope = {**scope, "headers": [held for held in scope["headers"] if held[0] not in FORWARDED]}
            if not all(_name(f"//{text.decode('latin1')}") for name, text in scope["headers"] if name in ADDRESSES):
                await JSONResponse({"detail": "The request names no address that can be one."}, 400)(
                    scope, receive, send
                )
                return
            if not self._public and (refusal := self._refusal(Headers(scope=scope))):
                await JSONResponse({"detail": refusal}, 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(name := _name(f"//{host}")):
            return (
                f"This instance is not known as {name[:80] or 'nothing'!r}. Open it by its IP address, or start it "
                "with KVQ_ADDRESS set to the address of its page."
            )
        if origin is None or origin.partition("://")[2].lower() == host.lower():
            return None
        if (name := _name(origin)) and (name == self._address or (_is_local(name) and _is_local(_name(f"//{host}")))):
            return None
        if headers.get("sec-fetch-site") == "same-origin":  # a proxy wrote Host; a browser lets no page write this
            return None
        return (
            f"A page of {origin[:80]!r} may not ask this instance. If it is this instance's own page, start it with "
            "KVQ_ADDRESS set to the address of its page."
        )

    def _is_own(self, name: str) -> bool:
        """An address is nobody's name: no DNS leads there."""
        return name in self._names or _is_local(name) or _address(name) is not None


def _from_a_proxy(scope: Scope) -> bool:
    """Whether the request came through a proxy of FORWARDED_ALLOW_IPS, from which uvicorn takes the client and gives it
    no port where the proxy told none."""
    trusted = [part.strip() for part in os.environ.get("FORWARDED_ALLOW_IPS", "").split(",") if part.strip()]
    host, port = scope.get("client") or ("", None)
    return bool(trusted) and ("*" in trusted or port == 0 or any(_lies_in(host, part) for part in trusted))


def _lies_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:  # a name
        return host == network


def _name(address: str) -> str:
    """The host of an address, in small letters; "" of what is none."""
    try:
        parts = urlsplit(address)
        return (parts.hostname or "").rstrip(".") if address.isascii() and parts.port != -1 else ""
    except ValueError:  # also of a port that is none
        return ""


def _is_local(name: str) -> bool:
    found = _address(name)
    return name == "localhost" or name.endswith(".localhost") or (found is not None and found.is_loopback)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
