"""Whether policies of layers hold on prompts they have not seen: for each model and three budgets the policy of least
predicted KLD, the best uniform lane of no more bytes, of the candidates and of all that engines ship (as it is, with
centred keys, rotated), and the first and last two layers in fp16. Also what it takes to score layers, in CPU seconds of
one thread.

Prompts are stretches of the standard library's help topics, in turn scored and unseen. What is done is kept prompt by
prompt, and offered lanes in parts of PART, so that a script that was stopped goes on. Losses are no times: it can run
on a busy machine. Policies need scores, which are kept under KVQ_HOME; ``--parts offered`` needs none.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.measured import HERE, figures, keep
from kvq_core.models import LoadedModel, load
from kvq_core.models.second import SECOND_MODEL
from kvq_core.recommend.held_out import WIN, DeployedLane, VerifiedOffer, deployed_lanes, verification
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.recommend.sensitivity import (
    Sensitivity,
    followed_answer,
    identity,
    lane_losses,
    losses_of_some,
    score_layers,
)
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.spec import DEFAULT_MODEL, MAX_LANES, TENSORS, Lane
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.training.texts import read_texts

CANDIDATES = ("q4_0", "q8_0")
BITS = (5.0, 5.5, 6.5)
PROMPTS, TOKENS = 5, 64  # scored, and as many unseen; of a text
PARTS = ("solve", "offered", "speed")
PART = 12  # offered lanes that are run at once
SPEED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SPEED_PROMPTS, SPEED_TOKENS = 8, 500
ASKED = "Explain the following text in your own words: "


def texts(model: LoadedModel, count: int, tokens: int) -> list[StudyPrompt]:
    """Stretches that lie equally far apart."""
    ids = model.encode("\n\n".join(read_texts(None).documents))
    step = len(ids) // (count + 1)
    cut = (ids[at * step : at * step + tokens] for at in range(1, count + 1))
    return [StudyPrompt(prompt=ASKED + model.tokenizer.decode(each)) for each in cut]


class Case:
    """A model's part of the JSON: CPU seconds that a prompt's scoring took, and by unseen prompt and plan the loss."""

    def __init__(self, model: LoadedModel, out: Path, prompts: int = PROMPTS):
        self.model, self.out, self.prompts = model, out, prompts
        held = (figures(out.stem) if out.parent == HERE else None) or {}
        new = {"title": model.title, "results_version": RESULTS_VERSION, "scoring_cpu_s": [], "unseen": {}}
        found = held.get(model.id, new)
        self.part: dict[str, Any] = found if found.get("results_version") == RESULTS_VERSION else new
        every = texts(model, 2 * PROMPTS, TOKENS)
        self.scored, self.unseen = every[::2][:prompts], every[1::2][:prompts]
        self.candidates = [Candidate.parse(name) for name in CANDIDATES]

    def keep(self) -> None:
        keep(self.out, self.model.id, self.part)

    def scores(self) -> Sensitivity:
        for count in range(1, self.prompts + 1):
            began, done = time.process_time(), 0
            for event in score_layers(self.model, self.scored[:count], self.candidates):
                done += 1
                if isinstance(event, Sensitivity):
                    found = event
            if done > 1:  # what was kept takes no time
                self.part["scoring_cpu_s"].append(round(time.process_time() - began, 1))
                self.keep()
            print(f"{self.model.title}: {count} of {self.prompts} prompts scored", flush=True)
        return found

    def solve(self) -> None:
        scores = self.scores()
        costs = scores.costs(self.model.shape)
        offers = {bits: VerifiedOffer.of(costs, costs.budget(bits), None, self.candidates) for bits in BITS}
        plans = list({each.plan: each for offer in offers.values() for each in offer.every})
        for prompt in self.unseen:
            self.measure(prompt, plans)
        rows = [[self.part["unseen"][identity(prompt)][words(plan)] for plan in plans] for prompt in self.unseen]
        means = dict(zip(plans, np.mean(rows, 0).tolist(), strict=True))
        self.part["scores"], self.part["prompts"] = scores.id, self.prompts
        self.part["lanes_scored"] = len(scores.keys)
        self.part["budgets"] = {
            f"{bits:g}": verification(
                scores.id, None, costs.budget(bits), self.prompts, offer, means, self.candidates
            ).model_dump(mode="json", exclude={"id", "engine", "version", "flags"})
            for bits, offer in offers.items()
        }
        self.keep()

    def measure(self, prompt: StudyPrompt, plans: Sequence[LayerPlan]) -> None:
        """Of an unseen prompt the plans that it lacks."""
        held = self.part["unseen"].setdefault(identity(prompt), {})
        if left := [plan for plan in plans if words(plan) not in held]:
            lanes = [plan.lane(self.candidates, str(at)) for at, plan in enumerate(left)]
            found = lane_losses(self.model, prompt, lanes, followed_answer(self.model, prompt))
            held.update(zip(map(words, left), found, strict=True))
            self.keep()
            print(f"{self.model.title}: {len(self.part['unseen'])} of {self.prompts} unseen prompts", flush=True)

    def offered(self) -> None:
        """The uniform lanes that engines ship, of each budget, on the unseen prompts, and every case judged by them."""
        shape, held = self.model.shape, self.part["budgets"]
        of = {bits: deployed_lanes(shape, case["budget"], None, self.candidates) for bits, case in held.items()}
        every = list({each.title: each for some in of.values() for each in some}.values())
        found = self.part.setdefault("offered", {})
        for prompt in self.unseen:
            own = found.setdefault(identity(prompt), {})
            left = [each for each in every if each.title not in own]
            follow = followed_answer(self.model, prompt) if left else ""
            for at in range(0, len(left), PART):
                own |= self._losses(prompt, left[at : at + PART], follow)
                self.keep()
                print(f"{self.model.title}: {len(own)} of {len(every)} lanes, {len(found)} prompts", flush=True)
        for bits, some in of.items():
            held[bits] = beside(held[bits], [self._measured(each) for each in some])
        self.keep()

    def _losses(self, prompt: StudyPrompt, some: Sequence[DeployedLane], follow: str) -> dict[str, float | None]:
        """By title; None where it cannot be had."""
        got = losses_of_some(self.model, prompt, [each.titled for each in some], follow)
        return {each.title: got.get(each.title) for each in some}

    def _measured(self, each: DeployedLane) -> dict[str, Any]:
        own = [self.part["offered"][identity(prompt)][each.title] for prompt in self.unseen]
        mean = None if None in own else float(np.mean(own))
        lane = each.lane.model_dump(mode="json", exclude_defaults=True, exclude={"label"})
        return {"title": each.title, "lane": lane, "bytes": each.nbytes, "predicted": None, "measured": mean}

    def speed(self) -> None:
        """CPU seconds of one pass of MAX_LANES lanes over a prompt of SPEED_TOKENS tokens, and what all formats, layers
        and prompts come to."""
        (prompt,) = texts(self.model, 1, SPEED_TOKENS)
        layers = self.model.shape.layers
        every = [(name, tensor, layer) for name in SPEED for tensor in TENSORS for layer in range(layers)]
        some = every[:: len(every) // MAX_LANES][:MAX_LANES]
        lanes = [
            Lane.model_validate({"method": name, "tensors": t, "layers": [at], "label": f"{name} {t} {at}"})
            for name, t, at in some
        ]
        began = time.process_time()
        follow = followed_answer(self.model, prompt)
        answered = time.process_time() - began
        lane_losses(self.model, prompt, lanes, follow)
        took = time.process_time() - began - answered
        passes = -(-len(every) // MAX_LANES)
        total = SPEED_PROMPTS * (answered + passes * took)
        found = {"answer_cpu_s": answered, "pass_cpu_s": took, "lanes": len(lanes), "all_lanes": len(every)}
        self.part["speed"] = {**found, "passes": passes, "prompts": SPEED_PROMPTS, "total_cpu_s": total}
        self.keep()


def beside(case: dict[str, Any], shipped: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A case judged by uniform lanes of the candidates, ``of_candidates``, and of what engines ship, ``of_shipped``."""
    of_candidates = case.get("of_candidates", case["uniform"])
    done = [each for each in shipped if each["measured"] is not None]
    best = min(done, key=lambda each: each["measured"], default=None)
    uniform = min([of_candidates, *filter(None, [best])], key=lambda each: each["measured"])
    beats = WIN * case["policy"]["measured"] <= uniform["measured"]
    answer = case["policy"] if beats else uniform
    told = {name: answer[name] for name in ("lane", "bytes", "predicted", "measured")}
    own = {"beats": beats, "uniform": uniform, "of_candidates": of_candidates, "of_shipped": best, "lanes": len(done)}
    return {**case, **told, **own}


def words(plan: LayerPlan) -> str:
    """A plan by the first letters of its formats, keys and values: ``4`` and ``8`` bits, ``-`` fp16."""
    short = {"q4_0": "4", "q8_0": "8", FP16: "-"}
    return " ".join("".join(short[name] for name in plan.of(tensor)) for tensor in TENSORS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(DEFAULT_MODEL, SECOND_MODEL), action="append", help="one of them alone")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"scored, and unseen, of {PROMPTS} each")
    parser.add_argument("--out", type=Path, default=HERE / "policies.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for id in arguments.model or (DEFAULT_MODEL, SECOND_MODEL):
        case = Case(load(id), arguments.out, arguments.prompts)
        for part in arguments.parts:
            getattr(case, part)()
    print(json.dumps(figures(arguments.out.stem), indent=1)[:2000])


if __name__ == "__main__":
    main()
