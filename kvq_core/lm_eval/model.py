"""The model class that lm-eval knows as ``kvq-explorer``."""

import logging
from typing import Any

import lm_eval.models  # noqa: F401  its models are registered with ours, not in place of ours
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from kvq_core.errors import MethodError, SpecError, excerpt
from kvq_core.lm_eval.arguments import read_lane
from kvq_core.lm_eval.scoring import LaneScoring
from kvq_core.models import load
from kvq_core.spec import DEFAULT_MODEL

_log = logging.getLogger(__name__)
ITS_DEVICE = "cuda:0"  # what lm-eval's command line gives where nobody has asked for a device
NEW_TOKENS = 256  # where a task does not say how many


@register_model("kvq-explorer")
class KvqExplorer(TemplateLM):
    """A model whose cache is stored by one lane: ``more`` is its method, its fields such as ``sink_tokens`` or
    ``center``, and its knobs, see ``read_lane``.

    Stock loglikelihood computes context and continuation in one pass and never reads a cache back; here the context
    enters the cache, in chunks of ``prefill_chunk`` through the cache itself or else read in full precision first, and
    the continuation is decoded from it.

    Raises SpecError for a lane that is not possible, MethodError for one that cannot run on the model.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        revision: str | None = None,
        score_chunk: int = 1,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,  # lm-eval's default, of no meaning here
        device: str | None = None,
        **more: Any,
    ):
        super().__init__()
        if str(batch_size) != "1":
            raise SpecError(
                f"batch_size = {excerpt(batch_size)} is not allowed; requests run one after the other: leave it out."
            )
        lane = read_lane(**more)
        loaded = load(model, revision)
        if device not in (None, ITS_DEVICE, loaded.device.type, str(loaded.device)):
            raise SpecError(
                f"device = {excerpt(device)} is not allowed; {loaded.title} is on {loaded.device} here: leave it out."
            )
        if reason := lane.why_not(loaded.shape):
            raise MethodError(f"{lane.title} cannot run on {loaded.title}: {reason}.")
        self.scoring = LaneScoring(loaded, lane, score_chunk)
        self.tokenizer = loaded.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's own cache of requests tells models apart by."""
        return self.scoring.model.model_hash

    @property
    def max_length(self) -> int:
        return self.scoring.model.shape.context

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        bos = self.tokenizer.bos_token
        special = not (bos and string.startswith(bos)) if add_special_tokens is None else add_special_tokens
        return list(self.tokenizer(string, add_special_tokens=special)["input_ids"])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """The sum over each continuation and whether it is the greedy one; a context too long loses its beginning."""
        found, cut = [], 0
        for texts, context, follow in tqdm(requests, desc="loglikelihood", disable=disable_tqdm):
            if not follow:  # of two texts whose ends are one token
                raise SpecError(
                    f"The continuation {excerpt(texts[1])} has no token of its own after its context; change the "
                    "task's target_delimiter or its choices."
                )
            kept = self._fitting(context, len(follow))
            cut += len(kept) < len(context)
            each, greedy = self.scoring.likelihoods(kept, follow)
            found.append((each.sum().item(), greedy))
        self._tell(cut, len(requests))
        return found

    def _fitting(self, context: list[int], follow: int) -> list[int]:
        """Its end, where it and as many tokens more are longer than the model's context."""
        return context[-max(1, self.max_length - follow) :]

    def _tell(self, cut: int, requests: int) -> None:
        if cut:
            _log.warning(
                "%d of %d contexts are longer than the model's %d tokens leave room for, and lost their beginning.",
                *(cut, requests, self.max_length),
            )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, decoded from their first token on, in windows as long as the model's context."""
        found = []
        for (text,) in tqdm([request.args for request in requests], desc="rolling", disable=disable_tqdm):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            scored = [self.scoring.likelihoods(*make_disjoint_window(window))[0] for window in windows]
            found.append(sum(each.sum().item() for each in scored))
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the lane writes, up to the first stop string."""
        asked = tqdm([request.args for request in requests], desc="generate_until", disable=disable_tqdm)
        found = [self._generate(context, options, seed) for seed, (context, options) in enumerate(asked)]
        self._tell(sum(cut for _, cut in found), len(requests))
        return [text for text, _ in found]

    def _generate(self, context: str, options: dict[str, Any], seed: int) -> tuple[str, bool]:
        """And whether the context was cut. ``seed`` differs between the samples of one, which are requests apart."""
        until, most, temperature = _read(options)
        ids, text = self.tok_encode(context), ""
        kept = self._fitting(ids, most)
        for tokens in self.scoring.written(kept, most, temperature, seed):
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            if any(stop in text for stop in until):
                break
        return min((text.split(stop)[0] for stop in until), key=len, default=text), len(kept) < len(ids)


GREEDY_IGNORES = {"top_p", "top_k", "min_p"}


def _read(options: dict[str, Any]) -> tuple[list[str], int, float]:
    """Stop strings, most new tokens and temperature. Raises SpecError for what this does not do."""
    told = dict(options)
    until = told.pop("until", None) or []
    given = (told.pop(name, None) for name in ("max_gen_toks", "max_new_tokens"))
    most = next((int(each) for each in given if each is not None), NEW_TOKENS)
    samples, heat = told.pop("do_sample", None), told.pop("temperature", None) or 0.0
    temperature = float(heat) if samples or (samples is None and heat) else 0.0
    unknown = told.keys() - (set() if temperature else GREEDY_IGNORES)
    if unknown:
        raise SpecError(
            f"generation option {excerpt(min(unknown))} is not allowed; allowed: until, max_gen_toks, do_sample and "
            "temperature. Change the task's generation_kwargs."
        )
    stops = [until] if isinstance(until, str) else list(until)
    return [stop for stop in stops if stop], most, temperature
