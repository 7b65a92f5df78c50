"""Every format that engines ship, as a lane of all layers."""

from functools import cache

from kvq_core.engines import engines
from kvq_core.methods import Method, ModelShape, methods
from kvq_core.presets.bundles import bundle_lanes
from kvq_core.sizing.fit import ShippedFormat
from kvq_core.spec import Lane

_ANY = ModelShape(32, 8, 8, 128, 8192)
_PLAIN = {"transformers": "DynamicCache"}  # its class, where no format is asked for


@cache
def formats() -> tuple[ShippedFormat, ...]:
    """At their defaults and as bundles set them, unquantized ones first; without those that store something whatever
    the context, which no engine has."""
    found: dict[Method, list[str]] = {methods()["bf16"](): []}
    for name, cls in methods().items():
        if ".formats." in cls.__module__:
            found.setdefault(cls(), []).append(name)
    for given in bundle_lanes("deploy"):
        found.setdefault(Lane(**given).build(), []).append(given["label"])
    made = [_format(method, names) for method, names in found.items() if not any(method.fixed_bytes(_ANY))]
    by_words: dict[object, ShippedFormat] = {}
    for each in (_unquantized(), *made):
        by_words.setdefault((each.lane.method, *each.engines.items()), each)  # knobs that change no word are left out
    return tuple(by_words.values())


def _unquantized() -> ShippedFormat:
    method = methods()["fp16"]()
    words = {name: engine.plain for name, engine in engines().items() if engine.plain}
    return ShippedFormat(method.name, Lane(method=method.name), {**method.cache_types, **words, **_PLAIN})


def _format(method: Method, names: list[str]) -> ShippedFormat:
    cached = next((name for name in names if name.startswith("transformers ")), None)
    words = {} if cached is None else {"transformers": cached.removeprefix("transformers ")}
    lane = Lane(method=method.name, knobs=method.model_dump(mode="json", exclude_defaults=True), sliding=True)
    return ShippedFormat(_name(method, names), lane, {**method.cache_types, **words})


def _name(method: Method, names: list[str]) -> str:
    """Its own where it is at its defaults, else with what the bundle's label says behind the engine."""
    if method.name in names or not names:
        return method.name
    said = names[0].split(" ", 1)[1]
    return said if said.startswith(method.name) else f"{method.name} {said}"
