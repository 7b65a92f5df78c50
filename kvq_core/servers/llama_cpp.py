"""llama.cpp itself, from the optional package ``xllamacpp``: one model, one pair of cache types, one slot."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvq_core.errors import KvqError, SpecError, excerpt
from kvq_core.servers.asking import listed
from kvq_core.servers.dialects import LlamaServer
from kvq_core.servers.http import Http, read
from kvq_core.servers.tops import Top

PACKAGE = "xllamacpp"
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# bytes of 32 elements, ggml-common.h
BLOCK_BYTES = dict(zip(CACHE_TYPES, (128, 64, 64, 34, 24, 22, 20, 18, 18), strict=True))
UBATCH = 512  # tokens of a prompt that llama.cpp computes at once, unless it is told otherwise
EVERY = 1 << 24  # more tokens than any vocabulary has
_MOST_BYTES, _SECONDS = 1 << 30, 3600.0  # of an answer that lists every token, or reads a long prompt


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
        self._http = Http(self._server.listening_address, most=_MOST_BYTES, seconds=_SECONDS)
        self.asked = LlamaServer(self._http, file.name, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.__exit__(kind, error, at)
        del self._server  # its end stops the engine

    def tokens(self, text: str) -> list[int]:
        """Ids of a text, without what the model begins every text with."""
        return self.asked.tokens(text)

    def answer(self, ids: list[int], count: int) -> EngineAnswer:
        """What follows a prompt, greedily."""
        told = self.asked.complete(ids, count, return_tokens=True, cache_prompt=False)
        return read(told, "llama.cpp's answer", _answer)

    def save(self, ids: list[int], name: str) -> None:
        """What the cache holds of a text as a file in the folder of saves."""
        self.asked.read(ids)
        self._http.post("/slots/0?action=save", {"filename": name})

    def logprobs(self, ids: list[int], forced: list[int], top: int = EVERY) -> list[Top]:
        """Of every token of ``forced`` what the engine gave to its ``top`` most probable ones, before it was told the
        token; one at a time, as it decodes."""
        return [each.top for each in listed(self.asked, ids, forced, top)]


def _answer(told: dict[str, Any]) -> EngineAnswer:
    speed = told.get("timings", {}).get("predicted_per_second")
    return EngineAnswer(list(told["tokens"]), str(told["content"]), speed)


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
