"""What a KV-cache quantization method is."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from kvq_core.codebooks.lookup import CodebookNeed
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.queries import QueryRounding
from kvq_core.codecs.window import Window
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.numbers import no_truth
from kvq_core.methods.prompt import Prompt
from kvq_core.shape import ModelRef, ModelShape

Space = Literal["post", "pre"]
Axis = Literal["tokens", "channels"]


class Select(Protocol):
    """Chooses the keys a row attends to; the softmax is over these alone."""

    def __call__(self, layer: int, queries: Tensor, tokens: int) -> Tensor:
        """Index of the layer among the fitted ones, a row's queries (query_heads, fresh, head_dim) after RoPE, tokens
        in the cache -> bool (kv_heads, tokens)."""


@dataclass(frozen=True)
class Fitted:
    """A method fitted on one prompt: a codec each for keys and values, and remarks for the lane's card.

    A codec is None only where the method's window never lets a token leave. ``select`` chooses, before every softmax,
    the keys a row reads.
    """

    key: Codec | None
    value: Codec | None
    notes: tuple[str, ...] = ()
    select: Select | None = None


class KeySelection(BaseModel):
    """What a lane's ``select`` says: the keys that a step reads are chosen, whatever stores them. ``by`` names how, in
    a subclass of this package; the other fields are its knobs."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    _no_truth = no_truth

    by: str
    needs_queries: ClassVar[bool] = False
    decoding: ClassVar[bool] = False  # it chooses once the prompt has been read, which is read the same without it

    @abstractmethod
    def fit(self, prompt: Prompt, tokens: int) -> Fitted:
        """What chooses on this prompt, with remarks and without codecs: keys and queries are those after RoPE.
        ``tokens``: of the whole prompt, of which ``prompt`` may be the first chunk."""

    def not_chunked(self, own_chunk: str) -> str | None:
        """Why it cannot choose for a prompt that enters its cache in chunks; None where it can."""
        return None

    @abstractmethod
    def summary(self) -> str:
        """The choice and its settings in a few words: ``h2o 10 % heavy, 10 % recent``."""


class Method(BaseModel):
    """A frozen, validated method: its fields are its knobs, its docstring is what the page shows.

    A subclass sets ``name``, ``title``, ``paper`` and implements ``windows`` and ``fit``. ``scales``: along what the
    elements of keys and of values that share a scale lie, ``tokens`` of a channel or ``channels`` of a token; None
    where neither is so, or where they are turned first. Field metadata drives the form, the CLI and the documentation:
    ``title``, ``description``, bounds, choices, and ``json_schema_extra={"means": ...}`` on a knob that the lane option
    of that name sets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    _no_truth = no_truth

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str | None] = None
    deviations: ClassVar[tuple[str, ...]] = ()
    quantizes: ClassVar[bool] = True
    scales: ClassVar[tuple[Axis | None, Axis | None]] = (None, None)
    token_local: ClassVar[tuple[bool, bool]] = (False, False)  # codes of keys, of values are a token and layer's alone
    home: ClassVar[Home | None] = None  # of its first engine; None: no engine has it
    not_folded: ClassVar[str | None] = None  # why a lane's fold cannot divide its keys by scales of RoPE pairs
    queries_to: ClassVar[str | None] = None  # in words, what query_rounding rounds queries to
    anywhere: ClassVar[bool] = False  # every engine has it, and it fits the home of whatever it stands beside
    joint: ClassVar[bool] = False  # bytes of a layer's heads are not in proportion to their number

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "elsewhere" not in vars(cls):
            cls.elsewhere = Method.elsewhere  # type: ignore[method-assign]

    @property
    def own_home(self) -> Home | None:
        """``home`` with these knobs: an engine may read a prompt in another way where one is set."""
        return self.home

    @property
    def lane_title(self) -> str:
        """What a lane of it is called: the title, unless a knob makes it another thing."""
        return self.title

    @property
    def key_space(self) -> Space:
        """Whether keys are stored after ("post") or before ("pre") RoPE."""
        return "post"

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        """How a kernel that reads these keys rounds queries of a model first; None where it does not, or a knob turns
        it off."""
        return None

    @property
    def needs_queries(self) -> bool:
        """Whether ``fit`` reads the prompt's queries."""
        return False

    @abstractmethod
    def windows(self) -> tuple[Window, Window]:
        """Full-precision windows of keys and of values."""

    @abstractmethod
    def fit(self, prompt: Prompt) -> Fitted:
        """Codecs for the layers in ``prompt``: all of a lane's, or of a model larger than one device those on a device,
        after ``across_layers`` has seen them all.

        Raises MethodError when the prompt's tensors cannot be handled.
        """

    def sized(self, prompt: Prompt) -> Fitted:
        """Codecs that store as many bytes as those of ``fit`` do, for counts of bytes: where ``fit`` needs data learned
        for a model, such data is left blank. Raises MethodError as ``fit`` does."""
        return self.fit(prompt)

    @property
    def from_data(self) -> str | None:
        """Which of its widths follow from the prompt's numbers, so that bytes are known for them alone; None where all
        follow from its knobs and the model's shape."""
        return None

    @property
    def learned(self) -> str | None:
        """What data, learned for a model and stored with it, decoding reads; None where it reads none."""
        return None

    @property
    def not_centred(self) -> str | None:
        """Why keys less a constant (a lane's ``center``) are none that this method can store; None where they are."""
        return None

    @property
    def not_chunked(self) -> str | None:
        """Why a prompt cannot enter its cache chunk by chunk; None where it can."""
        return None

    @property
    def not_rotated(self) -> str | None:
        """Why it cannot store turned tensors (a lane's ``rotate``); None where it can."""
        return None

    @property
    def chooses(self) -> bool:
        """Whether a step reads chosen keys alone; then a lane's ``select`` cannot choose as well."""
        return self.selection is not None

    @property
    def selection(self) -> KeySelection | None:
        """What it is the short form of, where it chooses keys and leaves all it stores fp16."""
        return None

    @property
    def spans_layers(self) -> bool:
        """Whether ``fit`` weighs the layers against one another: it, or ``across_layers`` before it, sees all."""
        return False

    def across_layers(self, prompt: Prompt) -> Self:
        """This method with all decided that spans the layers of ``prompt``: fitted layer by layer, it fits the same."""
        return self

    @classmethod
    def window_knobs(cls) -> dict[str, str]:
        """Knobs that set what a lane option sets, by the option: ``sink_tokens``, ``recent_tokens``."""
        extras = ((name, info.json_schema_extra) for name, info in cls.model_fields.items())
        return {str(extra["means"]): name for name, extra in extras if isinstance(extra, dict) and "means" in extra}

    def why_not(self, shape: ModelShape) -> str | None:
        """Why this method cannot run on a model of this shape; None when it can."""
        return None

    def kept_layers(self, layers: int) -> frozenset[int]:
        """Layers of a model of so many that stay fp16 wherever it is used, because its engine keeps them."""
        return frozenset()

    def keeps_all(self, layers: int) -> str | None:
        """Why nothing would be quantized of a model of so many layers; None where something is."""
        every = layers and len(self.kept_layers(layers)) == layers
        return f"it keeps all {layers} layers of this model in fp16; take fewer boundary layers" if every else None

    def data_hash(self, model: ModelRef) -> str | None:
        """Hash of data beside the model that decides the result, such as learned codebooks."""
        return None

    def lacks(self, model: ModelRef) -> tuple[CodebookNeed, ...]:
        """Learned data this method needs on a model and does not find: its lane would fail, and training is offered."""
        return ()

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        """Stored bytes of keys and of values a quantized layer that do not grow with the tokens: a basis, norms."""
        return 0, 0

    def exact_bytes(self, shape: ModelShape, tokens: int) -> tuple[int, int]:
        """Stored bytes of keys and of values a layer that a block of a prompt of so many tokens holds beside its codes,
        as many whatever the tokens beyond some: outlier chunks. ``fixed_bytes`` counts them too."""
        return 0, 0

    def for_tensor(self, tensor: Literal["keys", "values"]) -> "Method":
        """The method as far as it decides how keys, or values, are stored: two that agree in this and are fitted on the
        same prompt store it alike."""
        return self

    def as_stored(self, parts: dict[str, float], shape: ModelShape) -> Self:
        """This method with whatever a prompt decided of its fixed bytes, told by what a run stored of it: bytes of a
        quantized layer by part (``key_basis``), on a model of that shape."""
        return self

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        """At most, bytes of the record's arrays that tell how a lane stores: its bits, and what Codec.usage counts."""
        return shape.layers * (4 * tokens + shape.kv_heads * 4 * 2 * 256)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        """Ways to use this method, or its nearest relative, outside this project; empty: no deployment exists yet.

        Not inherited: what is said of a method is false of one that stores something else.
        """
        return ()

    @property
    def cache_types(self) -> dict[str, str]:
        """What engines call the format that this stores, by engine; empty: none has it, or not with these knobs."""
        return {}

    def summary(self) -> str:
        """The settings in a few words, a lane's subtitle: ``K2 V2 · group 32 · window 32``."""
        return self.title

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        """The method and its width in a word or two, for a name that lists several: ``kivi 2``."""
        return self.name
