"""llama.cpp itself, from the optional package ``xllamacpp``: one model, one pair of cache types, one slot."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from kvq_core.errors import KvqError, SpecError, excerpt

PACKAGE = "xllamacpp"
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# bytes of 32 elements, ggml-common.h
BLOCK_BYTES = dict(zip(CACHE_TYPES, (128, 64, 64, 34, 24, 22, 20, 18, 18), strict=True))
UBATCH = 512  # tokens of a prompt that llama.cpp computes at once, unless it is told otherwise
LEAST_REST = 1e-7
FAVOUR = 1000.0  # more than any logit
EVERY = 1 << 24  # more tokens than any vocabulary has


class EngineError(KvqError):
    """The engine is missing, or could not do what was asked."""


@dataclass(frozen=True)
class Types:
    """Cache types of keys and of values, by llama.cpp's names."""

    keys: str
    values: str

    @classmethod
    def of(cls, words: str) -> Self:
        """``q8_0/q4_0``, or one name for both. Raises SpecError for a type that llama.cpp's caches do not have."""
        keys, _, values = words.strip().lower().partition("/")
        for name in (keys, values or keys):
            if name not in BLOCK_BYTES:
                raise SpecError(f"Cache type {excerpt(name)} is not one of llama.cpp's: {', '.join(BLOCK_BYTES)}.")
        return cls(keys, values or keys)

    def __str__(self) -> str:
        return f"{self.keys}/{self.values}"

    @property
    def flags(self) -> str:
        return f"-fa on -ctk {self.keys} -ctv {self.values}"


@dataclass(frozen=True)
class EngineAnswer:
    """Tokens an engine wrote by itself, their text, and how many it wrote a second."""

    ids: list[int]
    text: str
    tokens_a_second: float | None


class LlamaCpp:
    """A server in this process, on the CPU, that answers one request at a time; closed by ``with``.

    ``saves``: the folder that ``save`` writes into. Raises EngineError where the package is missing, the file cannot be
    loaded, or a request fails.
    """

    def __init__(
        self,
        file: Path,
        types: Types,
        context: int,
        ubatch: int = UBATCH,
        threads: int = 2,
        saves: Path | None = None,
    ):
        self.types = types
        engine = _package()
        options = engine.CommonParams()
        options.model.path = str(file)
        options.n_ctx, options.n_parallel, options.n_gpu_layers = context, 1, 0
        options.n_batch = options.n_ubatch = ubatch
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.cache_type_k, options.cache_type_v = (_ggml(engine, name) for name in (types.keys, types.values))
        # flash attention reads a cache of F32 rounded to F16, and is the only one that reads quantized values
        kernel = "DISABLED" if types.keys == types.values == "f32" else "ENABLED"
        options.flash_attn_type = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kernel}")
        options.warmup = options.ctx_shift = False
        options.verbosity = -1
        if saves is not None:
            options.slot_save_path = f"{saves}/"
        try:
            self._server = engine.Server(options)
        except RuntimeError as error:
            raise EngineError(f"llama.cpp cannot load {file.name} with a cache of {types}: {error}.") from None
        self._http = httpx.Client(base_url=self._server.listening_address, timeout=3600, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()
        del self._server  # its end stops the engine

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text, with what the model begins every text with where ``special``."""
        asked = {"content": text, "add_special": special, "parse_special": special}
        return list(self._post("/tokenize", asked)["tokens"])

    def chat(self, prompt: str) -> str:
        """A user's message as the model's own template writes it."""
        return str(self._post("/apply-template", {"messages": [{"role": "user", "content": prompt}]})["prompt"])

    def answer(self, ids: list[int], count: int) -> EngineAnswer:
        """What follows a prompt, greedily."""
        told = self._complete(ids, count, return_tokens=True)
        return EngineAnswer(
            list(told["tokens"]), str(told["content"]), told.get("timings", {}).get("predicted_per_second")
        )

    def save(self, ids: list[int], name: str) -> None:
        """What the cache holds of a text as a file in the folder of saves."""
        self._complete(ids, 0)
        self._post("/slots/0?action=save", {"filename": name})

    def logprobs(self, ids: list[int], forced: list[int], top: int = EVERY) -> "list[Top]":
        """Of every token of ``forced`` what the engine gave to its ``top`` most probable ones, before it was told the
        token; one at a time, as it decodes.

        It tells nothing where the token that it would write itself is part of a character only, so a plain one is
        favoured: what it tells is of the logits before they are biased.
        """
        found, favoured = [], [[self.tokens("a", special=False)[0], FAVOUR]]
        for at in range(len(forced)):
            told = self._complete([*ids, *forced[:at]], 1, n_probs=top, logit_bias=favoured)
            listed = told["completion_probabilities"][0]["top_logprobs"]
            found.append(Top.of([entry["id"] for entry in listed], [entry["logprob"] for entry in listed]))
        return found

    def _complete(self, ids: list[int], count: int, **more: Any) -> dict[str, Any]:
        asked = {"prompt": ids, "n_predict": count, "temperature": 0.0, "cache_prompt": True, "id_slot": 0, **more}
        return self._post("/completion", asked)

    def _post(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._http.post(path, json=asked)
            answer.raise_for_status()
            return dict(answer.json())
        except httpx.HTTPStatusError as error:
            said = error.response.json().get("error", {}).get("message", "") if error.response.content else ""
            raise EngineError(f"llama.cpp refused {path}: {said or error.response.status_code}.") from None
        except httpx.HTTPError as error:
            raise EngineError(f"llama.cpp did not answer {path}: {error}.") from None


@dataclass(frozen=True)
class Top:
    """The most probable next tokens: ids and log-probabilities, most probable first."""

    ids: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def of(cls, ids: list[int], logprobs: list[float]) -> Self:
        found = np.asarray(logprobs, np.float64)
        total = np.logaddexp.reduce(found)  # the engine's own sums of many small ones are up to 3e-4 above 1
        return cls(np.asarray(ids), found - max(0.0, total))

    def kld(self, other: "Top") -> float:
        """KL(self || other) in nats over the tokens that both list, all others as one: less than that over all tokens,
        by as much as what they leave out differs, and equal to it where both list every token."""
        _, own, theirs = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        p, q = np.exp(self.logprobs[own]), np.exp(other.logprobs[theirs])
        whole = float((p * (self.logprobs[own] - other.logprobs[theirs])).sum())
        rest_p, rest_q = 1 - p.sum(), 1 - q.sum()
        if min(rest_p, rest_q) < LEAST_REST:  # every token is listed, what is left is rounding
            return whole
        return whole + float(rest_p * np.log(rest_p / rest_q))


def version() -> str:
    """Of the package. Raises EngineError where it is missing."""
    from importlib.metadata import version as installed

    _package()
    return installed(PACKAGE)


def _package() -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise EngineError(f"llama.cpp is not here: pip install {PACKAGE}.") from None
    return xllamacpp


def _ggml(engine: Any, name: str) -> Any:
    return getattr(engine.ggml_type, f"GGML_TYPE_{name.upper()}")
