"""How many weights a configuration asks for: of the model that transformers itself builds for it, without numbers."""

import json
from functools import lru_cache, partial
from typing import Any

from kvq_core.errors import KvqError, ModelError
from kvq_core.machine.apart import apart
from kvq_core.models.text_part import text_part
from kvq_core.sizing.layers import Config, text_config
from kvq_core.sizing.weights import Parameters

SECONDS, ROOM = 8, 2**31  # and bytes that building may take; a model of 70B takes a tenth of a second


def parameters_of(config: Config) -> Parameters:
    """Of its language model, as a config.json has it; nothing is fetched, and no code but transformers' own runs.

    Raises ModelError where transformers does not know the family, or cannot build such a model.
    """
    plain = {name: value for name, value in config.items() if name not in ("quantization_config", "auto_map")}
    return _counted(json.dumps(plain, sort_keys=True, default=str))


@lru_cache(64)
def _counted(config: str) -> Parameters:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    given = json.loads(config)
    inner = text_config(given)
    known = [each for each in (given, *([inner] if inner != given else [])) if each.get("model_type") in CONFIG_MAPPING]
    reason = f"transformers does not know the family {str(given.get('model_type'))[:80]!r}"
    for each in known:
        MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[each["model_type"]], None)  # imported here, for every fork
        try:
            return apart(partial(_built, each), SECONDS, ROOM)
        except KvqError:
            raise
        except (TimeoutError, MemoryError):
            raise ModelError(f"building it takes more than {SECONDS} s or {ROOM >> 30} GiB") from None
        except Exception as error:
            reason = f"transformers cannot build it: {type(error).__name__}: {str(error)[:200]}"
    raise ModelError(reason)


def _built(given: dict[str, Any]) -> Parameters:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config, _ = text_part(CONFIG_MAPPING[given["model_type"]].from_dict(given))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
        )
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return Parameters(sum(sizes.values()) - experts, experts)
