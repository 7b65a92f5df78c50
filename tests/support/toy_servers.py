"""A server on 127.0.0.1 whose model is a toy (a token is a character, its logits a hash of all before it), in the forms
of four engines, and with the faults that servers have."""

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np

VOCABULARY = 90
BOMB = gzip.compress(b" " * 50_000_000)
ANSWERS = {"html": b"<html>", "list": b"[1]", "slow": b"{}", "form": b"{}", "long": b'"' + b"x" * 10_000_000 + b'"'}
OWNERS = {"llama.cpp": "llamacpp", "vLLM": "vllm", "SGLang": "sglang", "OpenAI": "somebody"}


def encode(text: str) -> list[int]:
    return [(ord(c) - 32) % VOCABULARY for c in text]


def decode(ids: list[int]) -> str:
    return "".join(chr(32 + token) for token in ids)


@dataclass
class Toy:
    """``noise``: nats that its logits are off; ``fault``: what it does from request ``after`` on, ``times`` times."""

    engine: str = "llama.cpp"
    noise: float = 0.0
    seed: int = 0
    most: int = 1000
    reuse: bool = True
    vocabulary: int = VOCABULARY
    fault: str = ""
    after: int = 0
    times: int = 10**9
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def logprobs(self, ids: list[int]) -> np.ndarray:
        def drawn(salt: str) -> np.ndarray:
            digest = hashlib.sha256(f"{salt}{ids[-24:]}".encode()).digest()
            return np.random.default_rng(int.from_bytes(digest[:8], "big")).normal(size=VOCABULARY)

        logits = 2 * drawn("model") + self.noise * drawn(f"noise {self.seed}")
        return logits - np.logaddexp.reduce(logits)

    def top(self, ids: list[int], count: int) -> list[tuple[int, float]]:
        found = self.logprobs(ids)
        return [(int(token), float(found[token])) for token in np.argsort(-found)[: min(count, self.most)]]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        written: list[int] = []
        while len(written) < count:
            written.append(self.top([*ids, *written], 1)[0][0])
        return written

    def reused(self, ids: list[int], fresh: bool) -> int:
        same = 0
        while not fresh and same < min(len(ids) - 1, len(self.stored)) and ids[same] == self.stored[same]:
            same += 1
        self.stored = ids
        return same if self.reuse else 0

    def answer(self, path: str, asked: dict[str, Any]) -> Any:
        if path == "/v1/models":
            meta = {"n_vocab": self.vocabulary, "n_params": 7}
            return {"data": [{"id": "toy", "owned_by": OWNERS[self.engine], "meta": meta}]}
        return getattr(self, f"_{path.strip('/').replace('/', '_').replace('-', '_')}")(asked)

    def _apply_template(self, asked: dict[str, Any]) -> Any:
        return {"prompt": "".join(f"{each['role']}: {each['content']}" for each in asked["messages"])}

    def _tokenize(self, asked: dict[str, Any]) -> Any:
        text = asked.get("content", asked.get("prompt"))
        ids = encode(self._apply_template(asked)["prompt"] if text is None else text)
        return {"tokens": [token + 1 for token in ids] if self.fault == "tokenizer" else ids}

    def _detokenize(self, asked: dict[str, Any]) -> Any:
        text = decode(asked["tokens"])
        return {"content": text, "prompt": text, "text": text}

    _v1_tokenize, _v1_detokenize = _tokenize, _detokenize

    def _completion(self, asked: dict[str, Any]) -> Any:
        ids = asked["prompt"]
        cached = self.reused(ids, not asked["cache_prompt"])
        timings = {"cache_n": cached, "prompt_ms": 1.0, "predicted_ms": 1.0}
        listed = [{"id": token, "logprob": value} for token, value in self.top(ids, asked.get("n_probs", 1))]
        written = self.greedy(ids, asked["n_predict"])
        return {"tokens": written, "content": "", "completion_probabilities": [{"top_logprobs": listed}]} | {
            "timings": timings
        }

    def _v1_completions(self, asked: dict[str, Any]) -> Any:
        text = isinstance(asked["prompt"], str)
        ids = encode(asked["prompt"]) if text else asked["prompt"]
        name: Callable[[int], str] = (lambda i: decode([i])) if text else (lambda i: f"token_id:{i}")
        cached = self.reused(ids, False)
        written = self.greedy(ids, asked["max_tokens"])
        tops = [{name(token): value for token, value in self.top(ids, asked["logprobs"])}]
        usage = {"prompt_tokens_details": {"cached_tokens": cached}} if self.reuse else {}
        found = {"tokens": [name(token) for token in written], "top_logprobs": tops}
        return {"choices": [{"logprobs": found}], "usage": usage}

    def _generate(self, asked: dict[str, Any]) -> Any:
        ids = asked["input_ids"]
        tops = [[[value, token, None] for token, value in self.top(ids, asked["top_logprobs_num"])]]
        written = self.greedy(ids, asked["sampling_params"]["max_new_tokens"])
        found = {"cached_tokens": self.reused(ids, False), "output_top_logprobs": tops}
        return {"meta_info": found | {"output_token_logprobs": [[-1.0, token, None] for token in written]}}


class _Handler(BaseHTTPRequestHandler):
    toy: ClassVar[Toy]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self, asked: dict[str, Any]) -> None:
        toy = self.toy
        toy.asked.append((self.path, asked, dict(self.headers)))
        at = len(toy.asked) - toy.after
        if not toy.fault or toy.fault == "tokenizer" or not 0 < at <= toy.times:
            return self._send(json.dumps(toy.answer(self.path, asked)).encode())
        if toy.fault == "busy":
            return self._send(b"{}", 429, {"Retry-After": "0.01"})
        if toy.fault == "redirect":
            return self._send(b"", 307, {"Location": "http://elsewhere.test/v1/models"})
        if toy.fault == "bomb":
            return self._send(BOMB, 200, {"Content-Encoding": "gzip"})
        if toy.fault == "slow":
            threading.Event().wait(1.5)
        if toy.fault in ANSWERS:
            return self._send(ANSWERS[toy.fault])
        if toy.fault == "refused":
            said = {"error": {"message": f"no such thing, {self.headers.get('Authorization')}"}}
            return self._send(json.dumps(said).encode(), 400)
        if toy.fault == "nan":
            text = json.dumps(toy.answer(self.path, asked))
            return self._send(text.replace('"logprob": -', '"logprob": NaN, "n": -').encode())
        self.close_connection = True  # killed

    def _send(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client has seen enough


@contextmanager
def serving(*toys: Toy) -> Iterator[list[str]]:
    """Their addresses."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"toy": toy})) for toy in toys]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
