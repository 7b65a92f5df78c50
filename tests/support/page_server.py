"""A served page that is asked over HTTP."""

import socket
import urllib.error
import urllib.parse
import urllib.request

from app import launch
from ui.server.health import Health
from ui.service.services import Services


class Asked:
    """A server of its own and what it answers."""

    def __init__(self, services: Services, health: Health):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.services, self.health = services, health
        self.address = f"http://127.0.0.1:{port}"
        self.blocks = launch(services, health, "127.0.0.1", port)

    def __call__(self, path: str, data: bytes | None = None, **headers: str):
        """Status, headers and body."""
        request = urllib.request.Request(self.address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()
