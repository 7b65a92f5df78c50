"""Words of flags in what people paste: command lines, lists of arguments, environments, containers' files and code.

Names are looked for as they are, whatever stands around them, so that no shell's or file's rules are needed.
"""

import re
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods.deployments import CONFIG

_NAMES = {  # common/arg.cpp of llama.cpp, with its environment; the servers' and their Python arguments
    "ctk": "-ctk|-{0,2}cache[-_]type[-_]k|LLAMA_ARG_CACHE_TYPE_K",
    "ctv": "-ctv|-{0,2}cache[-_]type[-_]v|LLAMA_ARG_CACHE_TYPE_V",
    **{  # common/common.cpp:1834-1898 of ik_llama.cpp
        f"ct{tensor}_{end}": f"-ct{tensor}-{end}|--cache-type-{tensor}-{end}"
        for tensor in "kv"
        for end in ("first", "last")
    },
    "both": "-{0,2}kv[-_]cache[-_]dtype",
    "skip": "-{0,2}kv[-_]cache[-_]dtype[-_]skip[-_]layers",
    "cq": "-cq|-{0,2}cache[-_]quant",
    "ollama": "OLLAMA_KV_CACHE_TYPE",
    "kv_bits": "-{0,2}kv[-_]bits",
    "kv_group": "-{0,2}kv[-_]group[-_]size",
    "quant_policy": "-{0,2}quant[-_]policy",
    "cca": "-cca|-{0,2}cache[-_]compand[-_]a",  # exllamav3/model_init.py:104
    "generate": "cache_implementation",
    "dtype": "(?:torch_)?dtype",
}
_SWITCHES = {  # flags without a value that change what is stored, by their first name; :2246-2250 of ik_llama.cpp
    "-khad": "-khad|--k-cache-hadamard",
    "-vhad": "-vhad|--v-cache-hadamard",
    "--kv-mean-center": "--kv-mean-center",  # of a fork of llama.cpp, with a file
    "--calculate-kv-scales": "-{0,2}calculate[-_]kv[-_]scales",  # of vLLM before 0.33
}
_BETWEEN = r"""(?:-(?=\s))?[\s=:,"'\\`^\[(]+(?:-\s+["']?)?"""  # blanks, quotes, the ends of lines, the dash of a list
WINDOWS = "sliding_window"  # among the layers that vLLM leaves out: those that attend to a window
_LAYER = rf"(?:\d+|{WINDOWS})\b"
_VALUE = {
    "cq": r"\d[\w.]*(?:,\w+)?",
    "skip": f"{_LAYER}(?:{_BETWEEN}{_LAYER})*",
    "dtype": r"(?:torch\.)?b?float16\b",
}
_ELSEWHERE = {"generate", "dtype"}  # names that other things have, too: without a value that is known they are those
_OF_ENDS = r"\w+(?:,\w*)?"
_COMMENT = re.compile(r"""("[^"\n]*"|'[^'\n]*')|(?:^|(?<=\s))#.*$""", re.MULTILINE)
_CONFIG = re.compile(r"(hqq|quanto)?QuantizedCache|cache_config|cache_implementation\W+quantized", re.IGNORECASE)
_SETTING = re.compile(rf"""\b({"|".join(CONFIG)})\b["']?\s*[=:]\s*["']?(-?\w+)""")


def scan(text: str) -> dict[str, Any]:
    """What each flag is given, the last time that it is; None where it is not; of ``switches`` those that are there.
    Raises SpecError for a flag without a value."""
    text = _COMMENT.sub(lambda found: found[1] or "", text)
    given: dict[str, Any] = {name: _value(name, flags, text) for name, flags in _NAMES.items()}
    skipped = given["skip"] or ""
    given |= {"skip": [int(layer) for layer in re.findall(r"\b\d{1,6}\b", skipped)], "windows": WINDOWS in skipped}
    return {**given, "switches": [name for name, flags in _SWITCHES.items() if re.search(_named(flags), text)]}


def quantized_cache_settings(text: str) -> dict[str, str] | None:
    """Settings of transformers' QuantizedCache, in code or as a dict; None where the text is not about one. Raises
    SpecError where it says none."""
    text = _COMMENT.sub(lambda found: found[1] or "", text)
    if not (found := _CONFIG.search(text)):
        return None
    told = dict(_SETTING.findall(text))
    backend = {"backend": found[1]} if found[1] else {}
    if not told and not backend and "cache_implementation" not in text:
        raise SpecError(f"{excerpt(text)} cannot be read: it gives none of {', '.join(CONFIG)}.")
    return {**{name: str(value) for name, value in CONFIG.items()}, **backend, **told}


def _named(flags: str) -> str:
    return rf"(?<![\w-])({flags})(?!\w|-\w)"


def _value(name: str, flags: str, text: str) -> str | None:
    value = _OF_ENDS if name.endswith(("first", "last")) else _VALUE.get(name, r"[\w.]+")
    found = list(re.finditer(rf"{_named(flags)}(?:{_BETWEEN}({value}))?", text))
    values = [each[2] for each in found if each[2]]
    if not values and found and name not in _ELSEWHERE:
        raise SpecError(f"{found[-1][1]} is given no value that can be read; give one behind it, as in -ctk q8_0.")
    return values[-1] if values else None
