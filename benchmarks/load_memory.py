"""What runs were estimated to hold beside the model, and what they held: each measured in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

SIZES = ((64, 16, 2), (2048, 64, 7))  # prompt tokens, new tokens, lanes; about


def measured_peaks(sizes: tuple[tuple[int, int, int], ...] = SIZES) -> list[dict[str, float]]:
    """Of runs of these sizes on the bundled model; ``peak_gb`` is the process's, model included."""
    runs = (
        subprocess.run([sys.executable, __file__, *map(str, size)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        for size in sizes
    )
    return [json.loads(run.stdout.splitlines()[-1]) for run in runs]


def peak(prompt: int, new: int, lanes: int) -> None:
    """Print what a run of that size was estimated to hold beside the model, and what it held. For a fresh process."""
    from kvq_core.pipeline.compare import compare
    from kvq_core.pipeline.estimate import estimate
    from kvq_core.presets import presets
    from kvq_core.spec import ComparisonSpec, parse_spec

    words = (presets()["long-prompt"].spec.prompt + " ") * 6

    def spec(characters: int, new: int) -> ComparisonSpec:
        methods = [{"method": "kivi", "label": str(n), "knobs": {"bits": 2 + 2 * (n % 2)}} for n in range(lanes)]
        return parse_spec({"prompt": words[:characters], "max_new_tokens": new, "ignore_eos": True, "lanes": methods})

    for _ in compare(spec(100, 2)):
        pass
    held = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    given = spec(4 * prompt, new)
    given = spec(4 * prompt * prompt // estimate(given).prompt_tokens, new)
    found = estimate(given)
    for _ in compare(given):
        pass
    most = next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
    told = {"prompt_tokens": found.prompt_tokens, "new_tokens": new, "lanes": lanes}
    measured = {"measured_mb": most * 1.024e-3 - held / 1e6, "peak_gb": most * 1.024e-6}
    print(json.dumps({**told, "estimated_mb": found.cost.bytes / 1e6, **measured}))


if __name__ == "__main__":
    peak(*map(int, sys.argv[1:]))
