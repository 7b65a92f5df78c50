"""How each engine's server is asked for the log-probabilities that follow given tokens, one new token a request.

``llama.cpp`` is tried against its own server. The others are built from their sources and say so in what they report:
vLLM's entrypoints/openai/completion/protocol.py and serving.py, entrypoints/serve/tokenize; SGLang's
managers/io_struct.py (GenerateReqInput) and entrypoints/openai/serving_tokenize.py; OpenAI's reference of completions.
"""

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

from kvq_core.errors import excerpt
from kvq_core.servers.http import Http, ServerError, read
from kvq_core.servers.tops import Top

FAVOUR = 1000.0  # more than any logit
Tokens = list[Any]  # ids; texts where a server takes no ids
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Listed:
    """What a server gave to the next token, and how many tokens of the text it had stored already; None: not told."""

    top: Top
    reused: int | None


class Server:
    """A server of OpenAI's completions: text alone, no ids, so that a token is its text and a boundary may be read
    otherwise. Subclasses are engines that take ids.

    ``tried``: whether this was run against the real thing; ``stored``: whether a text that is read anew is read through
    the cache, too, so that the cache is measured though nothing is reused; None: not known.
    """

    name: ClassVar[str] = "OpenAI"
    tried: ClassVar[bool] = False
    stored: ClassVar[bool | None] = None
    template: ClassVar[bool] = False  # whether it writes messages as the model's own template has them
    again: ClassVar[bool] = False  # whether it can be made to read what it has stored again

    def __init__(self, http: Http, model: str, told: dict[str, Any]):
        self.http, self.model = http, model
        self.facts: dict[str, Any] = {"engine": self.name, "model": model.rsplit("/", 1)[-1] or model}
        self.spent: float | None = None  # seconds that it says its answers took
        self._salt = ""
        self._named: dict[int, str] = {}

    def prompt(self, messages: Messages) -> Tokens:
        return ["\n\n".join(str(message["content"]) for message in messages)]

    def tokens(self, text: str) -> Tokens:
        """A text without what a model begins every text with; as ids where ids can be had."""
        return [text]

    def text(self, tokens: Tokens) -> str:
        """Also of ids out of lists, where texts are asked for."""
        return "".join(self._named.get(token, "?") if isinstance(token, int) else token for token in tokens)

    def read(self, tokens: Tokens) -> None:
        """Let it read a text anew, whatever it has stored of it, where ``again``."""
        if self.again:
            self._salt = uuid.uuid4().hex
            self._complete(tokens, 1, 1)

    def answer(self, tokens: Tokens, count: int) -> Tokens:
        """What it writes after a text, greedily."""
        self._salt = uuid.uuid4().hex if self.again else ""
        return read(self._complete(tokens, count, 1), self._where, self._written)

    def _written(self, told: dict[str, Any]) -> Tokens:
        return [str(token) for token in told["choices"][0]["logprobs"]["tokens"]]

    def listed(self, tokens: Tokens, top: int) -> Listed:
        """Raises ServerError where it does not list at least one token, or no numbers."""
        told = self._complete(tokens, 1, top)
        return read(told, self._where, lambda told: Listed(self._top(told), self._reused(told)))

    def _complete(self, tokens: Tokens, count: int, top: int) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": self._sent(tokens), "max_tokens": count, "temperature": 0}
        return self.http.post("/v1/completions", {**asked, "logprobs": top, **self._more()})

    def _sent(self, tokens: Tokens) -> Any:
        return self.text(tokens)

    def _more(self) -> dict[str, Any]:
        return {}

    def _top(self, told: dict[str, Any]) -> Top:
        found = told["choices"][0]["logprobs"]["top_logprobs"][0]
        return Top.of([self._id(name) for name in found], list(found.values()))

    def _id(self, token: str) -> int:
        """A number for a token's text, the same for the same text; 63 bits."""
        found = int.from_bytes(hashlib.sha256(token.encode(errors="surrogatepass")).digest()[:8], "big") >> 1
        self._named[found] = token
        return found

    def _reused(self, told: dict[str, Any]) -> int | None:
        details = (told.get("usage") or {}).get("prompt_tokens_details") or {}
        return _count(details.get("cached_tokens"))

    @property
    def _where(self) -> str:
        return f"What {self.http.address} answers as {self.name}"


class Vllm(Server):
    """Prefixes are stored by blocks; a salt of its own makes a text one that was never read."""

    name, template, again = "vLLM", True, True

    def prompt(self, messages: Messages) -> Tokens:
        asked = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        return read(self.http.post("/tokenize", asked), self._where, _ids)

    def tokens(self, text: str) -> Tokens:
        asked = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return read(self.http.post("/tokenize", asked), self._where, _ids)

    def text(self, tokens: Tokens) -> str:
        told = self.http.post("/detokenize", {"model": self.model, "tokens": tokens})
        return read(told, self._where, lambda told: str(told["prompt"]))

    def _written(self, told: dict[str, Any]) -> Tokens:
        return [*map(self._id, super()._written(told))]

    def _sent(self, tokens: Tokens) -> Any:
        return tokens

    def _more(self) -> dict[str, Any]:
        return {"return_tokens_as_token_ids": True, **({"cache_salt": self._salt} if self._salt else {})}

    def _id(self, token: str) -> int:
        return int(token.removeprefix("token_id:"))


class Sglang(Server):
    """Its own /generate, which tells ids; ``extra_key`` keeps a text apart from what others had stored of it."""

    name, again = "SGLang", True

    def prompt(self, messages: Messages) -> Tokens:
        return self._tokens(super().prompt(messages)[0], True)

    def tokens(self, text: str) -> Tokens:
        return self._tokens(text, False)

    def _tokens(self, text: str, special: bool) -> Tokens:
        asked = {"model": self.model, "prompt": text, "add_special_tokens": special}
        return read(self.http.post("/v1/tokenize", asked), self._where, _ids)

    def text(self, tokens: Tokens) -> str:
        asked = {"model": self.model, "tokens": tokens, "skip_special_tokens": False}
        return read(self.http.post("/v1/detokenize", asked), self._where, lambda told: str(told["text"]))

    def _written(self, told: dict[str, Any]) -> Tokens:
        return [int(each[1]) for each in told["meta_info"]["output_token_logprobs"]]

    def _complete(self, tokens: Tokens, count: int, top: int) -> dict[str, Any]:
        asked = {"input_ids": tokens, "sampling_params": {"temperature": 0, "max_new_tokens": count}}
        more = {"extra_key": self._salt} if self._salt else {}
        return self.http.post("/generate", {**asked, "return_logprob": True, "top_logprobs_num": top, **more})

    def _top(self, told: dict[str, Any]) -> Top:
        found = told["meta_info"]["output_top_logprobs"][0]
        return Top.of([int(each[1]) for each in found], [each[0] for each in found])

    def _reused(self, told: dict[str, Any]) -> int | None:
        return _count(told["meta_info"].get("cached_tokens"))


class LlamaServer(Server):
    """llama.cpp's own server. It tells nothing where the token that it would write itself is part of a character only,
    so a plain one is favoured: what it tells is of the logits before they are biased. Slot 0 answers everything."""

    name, tried, stored, template, again = "llama.cpp", True, True, True, True
    _favoured: Tokens | None = None

    def __init__(self, http: Http, model: str, told: dict[str, Any]):
        super().__init__(http, model, told)
        known = {name: (told.get("meta") or {}).get(name) for name in ("n_params", "n_vocab", "size", "ftype")}
        self.facts |= {name: value for name, value in known.items() if value is not None}

    def prompt(self, messages: Messages) -> Tokens:
        told = self.http.post("/apply-template", {"messages": messages})
        return self._tokens(read(told, self._where, lambda told: str(told["prompt"])), True)

    def tokens(self, text: str) -> Tokens:
        return self._tokens(text, False)

    def _tokens(self, text: str, special: bool) -> Tokens:
        asked = {"content": text, "add_special": special, "parse_special": special}
        return read(self.http.post("/tokenize", asked), self._where, _ids)

    def text(self, tokens: Tokens) -> str:
        told = self.http.post("/detokenize", {"tokens": tokens})
        return read(told, self._where, lambda told: str(told["content"]))

    def read(self, tokens: Tokens) -> None:
        self.complete(tokens, 0, cache_prompt=False)

    def answer(self, tokens: Tokens, count: int) -> Tokens:
        told = self.complete(tokens, count, return_tokens=True, cache_prompt=False)
        return read(told, self._where, lambda told: [*map(int, told["tokens"])])

    def listed(self, tokens: Tokens, top: int) -> Listed:
        if self._favoured is None:
            self._favoured = [[self.tokens("a")[0], FAVOUR]]
        wanted = ["completion_probabilities", "timings"]
        told = self.complete(tokens, 1, n_probs=top, logit_bias=self._favoured, response_fields=wanted)
        return read(told, self._where, lambda told: Listed(self._top(told), self._reused(told)))

    def _top(self, told: dict[str, Any]) -> Top:
        found = told["completion_probabilities"][0]["top_logprobs"]
        return Top.of([int(each["id"]) for each in found], [each["logprob"] for each in found])

    def _reused(self, told: dict[str, Any]) -> int | None:
        return _count((told.get("timings") or {}).get("cache_n"))

    def complete(self, tokens: Tokens, count: int, **more: Any) -> dict[str, Any]:
        asked = {"prompt": tokens, "n_predict": count, "temperature": 0.0, "cache_prompt": True, "id_slot": 0, **more}
        told = self.http.post("/completion", asked)
        timings = told.get("timings") if isinstance(told.get("timings"), dict) else {}
        spent = [float(timings.get(name) or 0) for name in ("prompt_ms", "predicted_ms")] if timings else []
        self.spent = (self.spent or 0.0) + sum(spent) / 1000 if spent else self.spent
        return told


def connect(http: Http) -> Server:
    """The server at an address, by the engine that its list of models names. Raises ServerError."""
    told = http.get("/v1/models")
    first = read(told, f"What {http.address} answers to /v1/models", lambda told: dict(told["data"][0]))
    kinds: dict[Any, type[Server]] = {"llamacpp": LlamaServer, "vllm": Vllm, "sglang": Sglang}
    model = first.get("id")
    if not isinstance(model, str):
        raise ServerError(f"{http.address} lists a model without a name: {excerpt(model)}; give another address.")
    return kinds.get(first.get("owned_by"), Server)(http, model, first)


def _ids(told: dict[str, Any]) -> Tokens:
    found = told["tokens"]
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise ValueError("tokens are not ids")
    return found


def _count(found: Any) -> int | None:
    return found if type(found) is int and found >= 0 else None
