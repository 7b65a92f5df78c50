"""The tokenizer a GGUF file describes: transformers builds it, and text is cut as llama.cpp cuts it for that file.

transformers' reader cuts text as GPT-2 does wherever it does not know ``tokenizer.ggml.pre``; here other names are
refused. Expressions: llama.cpp, src/llama-vocab.cpp.
"""

import tempfile
from pathlib import Path
from typing import Any

from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from kvq_core.errors import excerpt
from kvq_core.models.gguf.configuration import refusal, token_id
from kvq_core.models.gguf.header import Header

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CUTS: dict[str, tuple[str, ...]] = {  # expressions that transformers does not have, applied one after the other
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    **dict.fromkeys(("refact", "starcoder", "command-r", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("olmo", "jais"), (_GPT2,)),
    "stablelm2": (PRETOKENIZE_REGEX,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# a word the vocabulary holds is one token, whatever the merges say
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2")
_KNOWN = (
    *_CUTS,
    *_WHOLE_WORDS,
    "qwen2",
    "qwen35",
    "deepseek-r1-qwen",
    "smaug-bpe",
    "dbrx",
    "gpt-4o",
    "llama4",
    "minimax-m2",
)
_NEEDED = {"gpt2": "merges", "llama": "scores", "gemma4": "merges"}  # of each kind of vocabulary
_NO_BLANK_FIRST = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
)  # transformers puts none before a text of these, and before others one
_USED = {
    *("model", "pre", "tokens", "scores", "token_type", "merges", "add_bos_token", "add_eos_token"),
    *(f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
}
_HARMLESS = {  # tokens that only infilling, ranking or masking would put in
    *(f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
    *(f"{name}_token_id" for name in ("prefix", "suffix", "middle", "seperator", "cls", "mask")),
    "token_type_count",
}
_ROUND_TRIP = "def mean(values):\n    return sum(values) / len(values)  # 12345 naïve words, 東京 and 🙂\n"


def check_vocabulary(header: Header) -> None:
    """Raises ModelError where the tokenizer cannot be built exactly as the file has it, naming the key."""
    values = header.values
    model, pre = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre", "default")
    tokens = values.get("tokenizer.ggml.tokens")
    if model not in _NEEDED or not isinstance(tokens, list) or not tokens:
        raise refusal(
            header,
            f"its tokenizer is {excerpt(model)}; read are gpt2 (byte-level BPE), llama and gemma4 (SentencePiece)",
        )
    needed = _NEEDED[model]
    if not isinstance(held := values.get(f"tokenizer.ggml.{needed}"), list):
        raise refusal(header, f"tokenizer.ggml.{needed} is missing")
    if needed == "merges" and (odd := next((m for m in held if not _is_pair(m)), None)) is not None:
        raise refusal(header, f"tokenizer.ggml.merges holds {excerpt(odd)}, which is no pair of tokens")
    if len(tokens) > next((e.shape[0] for e in header.entries if e.name == "token_embd.weight"), 0):
        raise refusal(header, f"its vocabulary has {len(tokens)} tokens, more than the embedding has rows")
    if model == "gpt2" and pre not in _KNOWN:
        raise refusal(header, f"tokenizer.ggml.pre = {excerpt(pre)} is not known here; known are {', '.join(_KNOWN)}")
    prefix = values.get("tokenizer.ggml.add_space_prefix", True)
    if model != "gpt2" and prefix is not (expected := header.architecture not in _NO_BLANK_FIRST):
        raise refusal(header, f"tokenizer.ggml.add_space_prefix is {excerpt(prefix)}, and only {expected} is read")
    for key, value in values.items():
        kind, _, rest = key.removeprefix("tokenizer.").partition(".")
        harmless = not key.startswith("tokenizer.") or kind in ("chat_template", "chat_templates", "huggingface")
        harmless |= kind == "ggml" and rest in _USED | _HARMLESS
        harmless |= rest == "add_space_prefix"  # BPE here adds none
        harmless |= rest in ("remove_extra_whitespaces", "add_sep_token") and value is False
        if not harmless:
            raise refusal(header, f"{excerpt(key)} = {excerpt(value)} is not known here and may change the tokens")


def _is_pair(merge: Any) -> bool:
    """Whether it is two texts with a blank between them, as transformers' reader cuts it."""
    return isinstance(merge, str) and len(merge.split(" ")) == 2 and all(merge.split(" "))


def tokenizer(header: Header, pre: str | None = None) -> Any:
    """transformers' tokenizer of the file, with its chat template. ``pre`` stands in for ``tokenizer.ggml.pre``.

    Raises ModelError where text does not come back from it.
    """
    from tokenizers import Regex, pre_tokenizers
    from transformers import TokenizersBackend

    with tempfile.TemporaryDirectory() as place:  # files beside the model would be read in place of its own
        Path(place, "model.gguf").symlink_to(header.path.resolve())
        built: Any = TokenizersBackend.from_pretrained(place, gguf_file="model.gguf", local_files_only=True)
    if header.values["tokenizer.ggml.model"] == "gpt2":
        backend, pre = built.backend_tokenizer, pre or header.values.get("tokenizer.ggml.pre", "default")
        if pre in _CUTS and pre != "gpt-2":  # transformers' own default
            cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in _CUTS[pre]]
            level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, level])
        if pre in _WHOLE_WORDS:
            backend.model.ignore_merges = True
            built.add_bos_token = header.values.get("tokenizer.ggml.add_bos_token", True)  # llama.cpp's default for it
    if header.values["tokenizer.ggml.model"] == "gemma4":
        built.add_bos_token = header.values.get("tokenizer.ggml.add_bos_token", True)  # transformers' reader says no
    _check_round_trip(header, built)
    return built


def _check_round_trip(header: Header, built: Any) -> None:
    """Where the vocabulary holds every byte, any text must come back."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = set(header.values["tokenizer.ggml.tokens"])
    if not (tokens.issuperset(bytes_to_unicode().values()) or tokens.issuperset(f"<0x{b:02X}>" for b in range(256))):
        return
    ids = built(_ROUND_TRIP, add_special_tokens=False)["input_ids"]
    back = built.decode(ids, clean_up_tokenization_spaces=False)
    if back.removeprefix(" ") != _ROUND_TRIP:
        raise refusal(header, f"its tokenizer does not give a text back: {excerpt(back)} for {excerpt(_ROUND_TRIP)}")
    for name in ("bos", "eos"):
        if (id := token_id(header, name)) is not None and getattr(built, f"{name}_token_id") != id:
            raise refusal(header, f"its tokenizer has {name} token {getattr(built, f'{name}_token_id')}, not {id}")
