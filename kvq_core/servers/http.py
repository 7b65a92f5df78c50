"""One server over HTTP: answers of so many bytes and seconds at most, asked again where it says so; a secret key."""

import json
import math
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from kvq_core.errors import KvqError, SpecError, abbreviate, excerpt
from kvq_core.settings import settings

MOST_BYTES = 8 << 20  # of an answer: 20 log-probabilities take 2 kB
SECONDS = 600.0  # that one answer may take, from the first byte sent to the last one read
TRIES = 5
LONGEST_WAIT = 120.0  # seconds, whatever Retry-After says
_BUSY = (429, 503)
_HOST = re.compile(r"[\w.-]+(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?")

T = TypeVar("T")


class ServerError(KvqError):
    """The server could not be asked, or answered what cannot be read."""


def check_address(text: str) -> str:
    """An address that may be asked, without its slash. Raises SpecError."""
    try:
        found = urlsplit(text)
        found.port  # noqa: B018  raises where it is none
        fits = found.scheme in ("http", "https") and bool(_HOST.fullmatch(found.netloc)) and text.isprintable()
        fits = fits and not found.query and not found.fragment
    except ValueError:
        fits = False
    if not fits or "@" in found.netloc:
        # what stands before @ is a password
        shown = excerpt(text) if "@" not in text else "with a name or a password"
        raise SpecError(
            f"The address {shown} is not allowed; give one such as http://127.0.0.1:8080, and a key in the environment."
        )
    if settings().public:
        raise SpecError("This instance is public and asks no servers; run verify where you run the server, or near it.")
    return text.rstrip("/")


class Http:
    """A client of one address. Closed by ``with``. Raises ServerError in one line for whatever goes wrong."""

    def __init__(self, address: str, key: str | None = None, most: int = MOST_BYTES, seconds: float = SECONDS):
        self.address, self.most, self.seconds = check_address(address), most, seconds
        self._key = os.environ.get(key, "").strip() if key else ""
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}
        # proxies and .netrc would see, or send, what is not theirs
        self._client = httpx.Client(headers=headers, timeout=httpx.Timeout(seconds, connect=10), trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        return self._asked("GET", path, None)

    def post(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        return self._asked("POST", path, asked)

    def _asked(self, verb: str, path: str, asked: dict[str, Any] | None) -> dict[str, Any]:
        for tried in range(1, TRIES + 1):
            try:
                with self._client.stream(verb, self.address + path, json=asked) as answer:
                    if answer.status_code in _BUSY and tried < TRIES:
                        wait = _retry_after(answer.headers.get("Retry-After"), tried)
                    else:
                        return self._read(answer, path)
            except httpx.TimeoutException:
                self._fail(f"did not answer {path} within {self.seconds:g} s; is it busy, or another address?")
            except httpx.TransportError as error:
                if tried == TRIES:
                    self._fail(f"cannot be reached at {path}: {str(error) or type(error).__name__}; is it running?")
                wait = 0.2 * 2**tried
            time.sleep(wait)
        raise AssertionError("the last try answers or raises")

    def _read(self, answer: httpx.Response, path: str) -> dict[str, Any]:
        if answer.is_redirect:
            there = urlsplit(answer.headers.get("Location", "")).netloc or "another path"
            self._fail(f"sends {path} elsewhere ({excerpt(there)}), which is not followed; give that address.")
        if (coded := answer.headers.get("Content-Encoding", "identity")) != "identity":
            self._fail(f"answers {path} compressed ({excerpt(coded)}) though asked not to; turn that off.")
        data, end = bytearray(), time.monotonic() + self.seconds
        for part in answer.iter_raw():
            data += part
            if len(data) > self.most:
                self._fail(f"answers {path} with more than {self.most:,} bytes, which is not read.")
            if time.monotonic() > end:
                self._fail(f"did not end its answer to {path} within {self.seconds:g} s.")
        if not answer.is_success:
            self._fail(f"refused {path} ({answer.status_code}): {_complaint(bytes(data))}")
        try:
            told = json.loads(data, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self._fail(f"answers {path} with what is not JSON: {abbreviate(str(error))}.")
        if not isinstance(told, dict):
            self._fail(f"answers {path} with {type(told).__name__} where an object belongs.")
        return told

    def _fail(self, said: str) -> NoReturn:
        line = f"{self.address} {said}"
        raise ServerError(line.replace(self._key, "***") if self._key else line) from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _complaint(data: bytes) -> str:
    """What a server says of an error, in the forms of OpenAI, FastAPI and plain text."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return abbreviate(data.decode(errors="replace").strip(), 200) or "no word."
    for name in ("error", "message", "detail"):
        told = told.get(name, told) if isinstance(told, dict) else told
    return abbreviate(str(told), 200)


def _retry_after(said: str | None, tried: int) -> float:
    """Seconds: a number of them, a date, or twice as long with every try."""
    wait: float = 2.0 ** (tried - 1)
    try:
        wait = float(said or wait)
    except ValueError:
        try:
            wait = (parsedate_to_datetime(said or "") - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            pass
    return min(max(wait, 0.0), LONGEST_WAIT) if math.isfinite(wait) else LONGEST_WAIT


def read(told: dict[str, Any], where: str, take: Callable[[dict[str, Any]], T]) -> T:
    """What ``take`` finds in an answer. Raises ServerError where the answer has another form."""
    try:
        return take(told)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ServerError(
            f"{where} has another form than is known: {type(error).__name__} {abbreviate(str(error))}; another engine?"
        ) from None
