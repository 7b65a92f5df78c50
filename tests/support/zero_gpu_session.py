"""What test_zero_gpu.py runs in a process of its own, which forks: a server on ZeroGPU with a visitor."""

import json
import os
import sys

from kvq_core.errors import KvqError
from kvq_core.record.events import Finished, Step
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from ui.server.zero_gpu import prepare

PROMPT = "The mill stood on a causeway and worked with the tide, twice a day, in summer and in winter alike. " * 2


def spec(tokens: int, **knobs: int):
    return parse_spec(
        {
            "prompt": PROMPT,
            "max_new_tokens": tokens,
            "capture": {"detail": "off"},
            "lanes": [{"method": "kivi", "knobs": {"bits": 2, **knobs}}],
        }
    )


def refused(events) -> list[str]:
    try:
        for _ in events:
            pass
    except KvqError as error:
        return [type(error).__name__, str(error)]
    return []


def main() -> None:
    import spaces  # the stand-in; nothing else may import it by accident

    store = open_store()
    compare = prepare()["compare"]
    events = list(compare(spec(6), store))
    finished = events[-1]
    assert isinstance(finished, Finished)
    found = {
        "run": finished.record.id,
        "steps": sum(isinstance(event, Step) for event in events),
        "tensors": {name: type(array).__module__ for name, array in finished.arrays.items()},
        "stored": store.exists(finished.record.id),
        "sum": float(finished.arrays["lane/0/kld"].sum()),
        "asked": list(spaces.asked),
        "elsewhere": [worker.pid != os.getpid() for worker in spaces.workers],
    }
    found["reused"] = list(compare(spec(6), store))[-1].reused
    found["too_long"] = refused(compare(spec(2048).model_copy(update={"prompt": PROMPT * 200}), store))
    going = compare(spec(200), store)
    next(event for event in going if isinstance(event, Step))
    going.close()
    spaces.workers[-1].join(60)
    found["cancelled"] = not spaces.workers[-1].is_alive() and len(store.list()) == 1
    spaces.busy.append('Quota exceeded. <a href="https://huggingface.co/join">Create a free account</a>')
    found["busy"] = refused(compare(spec(6), store))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
