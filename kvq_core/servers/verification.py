"""A verification from its addresses to its report, kept beside the runs of a store under an id of what was found."""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import PurePath
from typing import Any

from kvq_core.errors import KvqError, SpecError, StoreError
from kvq_core.machine.progress import Report as Tell
from kvq_core.record.beside import is_id, read_beside, write_beside
from kvq_core.record.store import Store
from kvq_core.servers.asking import Asked, Baseline, OtherServer, ask, notice
from kvq_core.servers.dialects import Server, connect
from kvq_core.servers.http import Http, ServerError, check_address
from kvq_core.servers.llama_cpp import Types
from kvq_core.servers.verdict import CacheVerdict, FoundNats, judge
from kvq_core.studies.prompts import StudyPrompt

_NAME = "verifications/{}.json"
WORST = 8  # positions that are told in their text
MOST = {"tokens": 4096, "top": 10_000}
KEYS = ("KVQ_SERVER_KEY", "KVQ_AGAINST_KEY")  # of the server, and of the one it is measured against
Report = dict[str, Any]


@dataclass(frozen=True)
class ToVerify:
    """``against``: the baseline's address; None: the ``model``, which is run here. Beside it the model is ours to
    predict with; None: the one that the servers name, where it is here. ``form``: cache types by llama.cpp's names;
    None: not told. Raises SpecError for what cannot be asked, before anything is."""

    server: str
    against: str | None
    prompts: Sequence[StudyPrompt]
    tokens: int
    top: int
    form: str | None
    model: str | None
    tolerance: float | None

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise SpecError(f"{name} {getattr(self, name)} is not allowed; give 1 to {most:,}.")
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise SpecError(f"tolerance {self.tolerance} is not allowed; give nats from 0.")
        if self.form is not None:
            Types.of(self.form)
        for address in filter(None, (self.server, self.against)):
            check_address(address)
        if not (self.against or self.model):
            raise SpecError("Give --against URL2, or --model M, to measure the server against.")


def verify(request: ToVerify, tell: Tell) -> Report:
    """Ask both, predict, judge. Raises ServerError where they cannot be asked, SpecError for prompts that are none,
    ModelError for a model that cannot be run here."""
    with ExitStack() as open_:
        server = connect(open_.enter_context(Http(request.server, KEYS[0])))
        if request.against:
            return _verified(
                server, OtherServer(connect(open_.enter_context(Http(request.against, KEYS[1])))), request, tell
            )
        from kvq_core.servers.predicted import OwnBaseline

        return _verified(server, OwnBaseline(str(request.model)), request, tell)


def _verified(server: Server, baseline: Baseline, request: ToVerify, tell: Tell) -> Report:
    notes = _checked(server, baseline)
    asked = list(ask(server, baseline, request.prompts, request.tokens, request.top, tell))
    read = sum(each.read for each in asked)
    told = [each.reused for each in asked if each.reused is not None]
    reused = sum(told) / read if told and read else None
    found = FoundNats(
        delivered=[each.kld for each in asked],
        floor=[each.floor for each in asked],
        reused=reused,
        stored=server.stored,
        engine=server.name,
        tolerance=request.tolerance,
    )
    verdict, lanes = _judged(found, server, request, asked, tell)
    report = _report(verdict, asked, request, reused, lanes)
    report |= {"server": {"address": server.http.address, **server.facts}, "baseline": baseline.facts}
    report["notes"] = [*notes, *_said(report, server)]
    report["id"] = hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()[:16]
    report["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    return report


def _checked(server: Server, baseline: Baseline) -> list[str]:
    """What a reader must know. Raises ServerError where the two are not one model."""
    notes = []
    for name in ("n_params", "n_vocab"):
        own, other = server.facts.get(name), baseline.facts.get(name)
        if None not in (own, other) and own != other:
            raise ServerError(
                f"{server.http.address} serves another model than its baseline: {name} {own:,} and {other:,}. Give two "
                "servers of one model."
            )
    if server.facts.get("size", 0) != baseline.facts.get("size", server.facts.get("size", 0)):
        notes.append("The weights are of other sizes: what their formats cost is in the figure, too.")
    if server.facts["model"] != baseline.facts["model"]:
        notes.append(f"The models have other names: {server.facts['model']} and {baseline.facts['model']}.")
    others = (server, baseline.server) if isinstance(baseline, OtherServer) else (server,)
    for name in dict.fromkeys(each.name for each in others if not each.tried):
        notes.append(f"The dialect of {name} is built from its documents and untried on a real server.")
    if any(not each.template for each in others):
        notes.append("Prompts were sent as they are, without the model's chat template.")
    return notes


def _judged(
    found: FoundNats, server: Server, request: ToVerify, asked: list[Asked], tell: Tell
) -> tuple[CacheVerdict, dict[str, Any]]:
    """The verdict, and lanes as ``predicted.predict`` tells them, of a process of its own: what both load would be
    twice a client's memory."""
    model, why = request.model or shipped(server), ""
    if request.form is None:
        why = "no format is given."
    elif model is None:
        why = "the model is not one that ships; give it with --model, where this machine can run it."
    if not why:
        tell(notice(f"Predicting {request.form} with {model}"))
        texts = [(each.tokens, each.forced) for each in asked]
        try:
            return _apart(_predicted, found, model, request.form, texts, request.top)
        except (KvqError, OSError, RuntimeError) as error:
            why = str(error)
    return _apart(judge, replace(found, unpredicted=why)), {}


def _apart(work: Callable[..., Any], *given: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        return apart.submit(work, *given).result()


def _predicted(found: FoundNats, *given: Any) -> tuple[CacheVerdict, dict[str, Any]]:
    from kvq_core.servers.predicted import predict  # with the engine, which a client does not hold

    lanes = predict(*given)
    return judge(replace(found, lanes=lanes)), lanes


def shipped(server: Server) -> str | None:
    """The id of the model that ships where the server names its file, and the weights are of that size."""
    from kvq_core.models.bundled import GGUF, place
    from kvq_core.spec import DEFAULT_MODEL

    file, size = place(), server.facts.get("size")
    here = file.is_file() and isinstance(size, int) and 0.9 * file.stat().st_size < size <= file.stat().st_size
    return DEFAULT_MODEL if here and PurePath(server.facts["model"]).name == PurePath(GGUF).name else None


def _report(
    verdict: CacheVerdict, asked: list[Asked], request: ToVerify, reused: float | None, lanes: dict[str, Any]
) -> Report:
    every = [(same, tie) for each in asked for same, tie in zip(each.same, each.tie, strict=True)]
    covered = [share for each in asked for share in each.covered]
    tolerance = request.tolerance
    return {
        "verdict": verdict.word,
        "why": verdict.why,
        "kld": {"mean": verdict.kld.value, "low": verdict.kld.low, "high": verdict.kld.high},
        "floor": verdict.floor,
        "predicted": verdict.predicted and verdict.predicted.value,
        "predicted_interval": verdict.predicted and [verdict.predicted.low, verdict.predicted.high],
        "format": request.form,
        "tolerance": tolerance,
        "beyond_tolerance": tolerance is not None and verdict.kld.value > tolerance,
        "suspects": list(verdict.suspects),
        "covered_mass": sum(covered) / len(covered),
        "reused": reused,
        "flips": sum(not same for same, _ in every),
        "near_tie_flips": sum(tie and not same for same, tie in every),
        "unlisted": sum(sum(each.unlisted) for each in asked),
        "n_scored": len(every),
        "top": request.top,
        "seconds": {"wall": sum(each.wall for each in asked), "servers": _sum([each.spent for each in asked])},
        "prompts": [
            {
                "id": each.id,
                "kld": sum(each.kld) / len(each.kld),
                "floor": sum(each.floor) / len(each.floor),
                "predicted": sum(lanes["format"][at]) / len(each.kld) if "format" in lanes else None,
                "flips": sum(not same for same in each.same),
                "n_scored": len(each.kld),
            }
            for at, each in enumerate(asked)
        ],
        "worst": sorted(
            ({"prompt": each.id, **one} for each in asked for one in each.worst), key=lambda one: -one["kld"]
        )[:WORST],
    }


def _sum(values: list[float | None]) -> float | None:
    return None if None in values else sum(filter(None, values))


def _said(report: Report, server: Server) -> list[str]:
    from kvq_core.studies.intervals import FEWEST

    said = [
        f"KLD is a lower bound: of the {report['top']} most probable tokens of the baseline, the others as one: "
        f"{report['covered_mass']:.1%} of the mass. {report['unlisted']:,} of them the server did not list."
    ]
    if len(report["prompts"]) < FEWEST:
        said.append(f"Under {FEWEST} prompts the interval is over positions, which is narrower than it should be.")
    if report["reused"] is None:
        said.append("The server does not say what it reuses of a text that it has read.")
    elif report["reused"] < 0.5:
        said.append(f"Prefixes were not reused: {report['reused']:.0%} of the tokens sent were stored already.")
    if not server.again:
        said.append("The server cannot be made to read a text anew: the floor is the same question asked twice.")
    return said


def status(report: Report) -> int:
    """0 as expected, 1 where the cache is not what it should be, 3 where that could not be measured."""
    if report["beyond_tolerance"] or report["verdict"] in ("worse", "no-op"):
        return 1
    return 0 if report["verdict"] == "as expected" else 3


def keep(store: Store, report: Report) -> None:
    """Raises StoreError."""
    write_beside(store, _NAME.format(report["id"]), json.dumps(report).encode())


def kept(store: Store, id: str) -> Report:
    """Raises StoreError where there is none."""
    data = read_beside(store, _NAME.format(id)) if is_id(id) else None
    if data is None:
        raise StoreError(f"Verification {id[:40]!r} is not in this store; give an id that verify printed.")
    return dict(json.loads(data))
