"""Scores of one query against CommVQ-coded keys: decoding them first against the commuted form of Eq. 19.

Writes and prints the multiplications each form needs and the time each takes here, in plain torch: the point of the
paper's Table 5, whose times are those of fused kernels on a GPU. "naive" decodes by multiplying each key's selection
with the codebook, as in Eq. 15; "look-up" decodes by adding rows; "commuted" never decodes.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

import torch
from kvq_kernels.rope_codebook import code_vectors, commuted_scores, decode_pairs, score_tables, scores_work
from torch import Tensor
from torch.nn.functional import one_hot


def rotate(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """keys (..., n, 2P) of one group, all x before all y."""
    x, y = keys.chunk(2, -1)
    return torch.cat([x * cos - y * sin, y * cos + x * sin], -1)


def best_ms(work: Callable[[], Tensor], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def counts(tokens: int, pairs: int, levels: int, stages: int) -> dict[str, int]:
    """Multiplications of one query and head.

    naive: a selection of 2 * levels entries a stage times a table 2P wide, and then what look-up takes, which adds rows
    instead. Look-up and commuted add as many rows (2R a key, 2P wide); ``scores_work`` has their products.
    """
    look_up, commuted = (pairs * scores_work(1, tokens, stages, levels, c).multiplications for c in (False, True))
    return {"naive": tokens * stages * 2 * levels * 2 * pairs + look_up, "look-up": look_up, "commuted": commuted}


def measure(tokens: int, heads: int, pairs: int, levels: int, stages: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(heads, stages, levels, pairs, 2, generator=generator)
    codes = torch.randint(0, levels, (heads, tokens, stages, 2), generator=generator, dtype=torch.uint8)
    query = torch.randn(heads, 2 * pairs, generator=generator)
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(pairs) / pairs)
    cos, sin = angles.cos(), angles.sin()

    vectors = code_vectors(theta).flatten(1, 3)  # (heads, stages * 2 * levels, 2P)

    def naive() -> Tensor:
        selection = one_hot(codes.long(), levels).float().flatten(2)
        return (rotate(selection @ vectors, cos, sin) @ query[..., None])[..., 0]

    def decoding() -> Tensor:
        return (rotate(decode_pairs(codes, theta), cos, sin) @ query[..., None])[..., 0]

    def commuting() -> Tensor:
        return commuted_scores(score_tables(query, theta), codes, cos, sin)

    times = {"naive": best_ms(naive), "look-up": best_ms(decoding), "commuted": best_ms(commuting)}
    difference = (naive() - commuting()).abs().max() / naive().abs().max()
    return {
        "tokens": tokens,
        "heads": heads,
        "levels": levels,
        "stages": stages,
        "difference": difference.item(),
        "multiplications": {name: heads * n for name, n in counts(tokens, pairs, levels, stages).items()},
        "ms": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "commvq_scores.json")
    asked = parser.parse_args()
    rows = [measure(asked.tokens, asked.heads, asked.pairs, levels, r) for levels, r in ((16, 8), (16, 16), (64, 11))]
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{asked.tokens} keys, {asked.heads} heads of {2 * asked.pairs}: multiplications in millions, times in ms")
    forms = ("naive", "look-up", "commuted")
    print("  L   R " + "".join(f"{f + ' M':>12}" for f in forms) + "".join(f"{f + ' ms':>13}" for f in forms))
    for row in rows:
        numbers = "".join(f"{row['multiplications'][f] / 1e6:>12.2f}" for f in forms)
        times = "".join(f"{row['ms'][f]:>13.2f}" for f in forms)
        print(f"{row['levels']:>3} {row['stages']:>3} {numbers}{times}   largest difference {row['difference']:.0e}")


if __name__ == "__main__":
    main()
