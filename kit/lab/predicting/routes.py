"""Routes: which experts each token of a mixture used, as people's tools record them, and as accesses to a cache."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import index
from pathlib import Path

import numpy as np

from kit.cache.traces import Requests
from kit.errors import TraceError, known
from kit.gguf.names import key_of
from kit.gguf.sources import model_name, refuse_misspelled
from kit.lab.predicting.route_text import above, count, lines_of, numbers, possible, shown, sizes
from kit.system.paths import data_file
from kit.units import from_json

CAPTURES = {  # name -> SHA-256 of data/routes/<name>.csv.gz; data/routes/NOTICE.md says where they come from
    "gptoss": "10e4f94527fcf1d1254cfc73a53c0239462864a0e3ff65c90f2a9d78bf73ade7",
    "qwen": "28d02123cb623a72a19bbe061d07400358235797493b13ee87abf4489ecf48d6",
    "gemma": "f696c64736906022d3646d1af4e822d2dd9fc041b93eb1b33f1d6ca58dbe8610",
}
_STACK = re.compile(r"blk\.(\d{1,4})\.\w+_exps\.\w+")
_USE = re.compile(r"blk\.(\d{1,4})\.ffn_\w*down_exps\.weight\[(\d{1,6})\]")  # once for each expert in use


@dataclass(frozen=True)
class Routes:
    """The experts in use, one row each: ``token``, ``layer``, ``expert`` (int64 arrays, in order of use).

    Tokens below ``prompt`` are the prompt's, which an engine computes at once: it reads a layer's distinct experts once. The
    others are decoded one by one. ``experts``: of a layer. ``expert_bytes``, ``dense_bytes``: of each layer, for one expert
    and for the rest; zeros where the record does not tell. ``resident``: of each row, whether the engine held the expert.
    """

    name: str
    token: np.ndarray
    layer: np.ndarray
    expert: np.ndarray
    prompt: int = 0
    experts: int = 0
    expert_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    dense_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    resident: np.ndarray | None = None

    @property
    def layers(self) -> int:
        """Number of layers, those without experts included."""
        return len(self.expert_bytes)

    @cached_property
    def decoded(self) -> list[list[tuple[int, list[int]]]]:
        """For each decoded token its (layer, experts in use), in order."""
        steps: dict[int, dict[int, list[int]]] = {}
        for token, layer, expert in zip(self.token.tolist(), self.layer.tolist(), self.expert.tolist(), strict=True):
            if token >= self.prompt:
                steps.setdefault(token, {}).setdefault(layer, []).append(expert)
        return [list(step.items()) for step in steps.values()]

    @property
    def used(self) -> float:
        """Experts that a decoded token uses in a layer, on average."""
        counts = [len(experts) for step in self.decoded for _, experts in step]
        return float(np.mean(counts)) if counts else 0.0

    @property
    def cycle(self) -> float:
        """Bytes of the experts that a decoded token uses, on average."""
        chosen = self.token >= self.prompt
        return float(self.expert_bytes[self.layer[chosen]].sum() / max(1, len(self.decoded)))

    def requests(self, prompt: bool = True) -> Requests:
        """Accesses to a cache whose objects are whole experts: token 0 is the prompt, 1, 2, ... are decoded.

        TraceError when the bytes of an expert are not known.
        """
        if not self.expert_bytes[self.layer].all():
            raise TraceError(f"{self.name}: the record does not give the bytes of an expert; also name the model's GGUF file")
        first = self.token < self.prompt
        pairs = dict.fromkeys(zip(self.layer[first].tolist(), self.expert[first].tolist(), strict=True)) if prompt else {}
        rows = [(layer, expert, 0) for layer, expert in sorted(pairs, key=lambda pair: pair[0])]
        for number, step in enumerate(self.decoded, start=1):
            rows += [(layer, expert, number) for layer, experts in step for expert in experts]
        nbytes, name = self.expert_bytes.tolist(), cache(key_of)
        keys = [name(layer, expert) for layer, expert, _ in rows]
        return Requests(keys, [nbytes[layer] for layer, _, _ in rows], [token for _, _, token in rows])

    def first(self, layers: int) -> "Routes":
        """The routes of the first ``layers`` layers alone, for a model that was cut there."""
        kept = self.layer < layers
        columns = {name: getattr(self, name)[kept] for name in ("token", "layer", "expert")}
        sizes = {name: getattr(self, name)[:layers] for name in ("expert_bytes", "dense_bytes")}
        return replace(self, **columns, **sizes, resident=None if self.resident is None else self.resident[kept])

    def sized(self, file) -> "Routes":
        """The same routes with the bytes of an open GGUF file; TraceError when its layers or experts are fewer."""
        experts, expert_bytes, dense_bytes = geometry_of(file)
        deep, many = (self.layer >= len(expert_bytes)).any(), (self.expert >= experts).any()
        if deep or many or not expert_bytes[self.layer].all():
            uses = f"uses layer {self.layer.max()} and expert {self.expert.max()}"
            has = f"{np.count_nonzero(expert_bytes)} layers of {experts} experts"
            raise TraceError(f"{self.name}: {uses}, but {file.path} has {has}")
        return replace(self, experts=experts, expert_bytes=expert_bytes, dense_bytes=dense_bytes)


def geometry_of(file) -> tuple[int, np.ndarray, np.ndarray]:
    """(experts of a layer, bytes of one expert by layer, bytes of the rest by layer) of an open GGUF file's mixture.

    TraceError when the file has no stacks of experts.
    """
    stacks = {name: info for name, info in file.tensors.items() if _STACK.fullmatch(name)}
    if not stacks:
        raise TraceError(
            f"{file.path}: this model has no experts (no tensor blk.N.*_exps.*); use `kit explain` for a dense model"
        )
    layer_of = {name: int(match[1]) for name in file.tensors if (match := re.match(r"blk\.(\d{1,4})\.", name))}
    expert_bytes, dense_bytes = np.zeros((2, max(layer_of.values()) + 1), np.int64)
    for name, layer in layer_of.items():
        info = file.tensors[name]
        (expert_bytes if name in stacks else dense_bytes)[layer] += info.nbytes // (info.shape[0] if name in stacks else 1)
    return max(info.shape[0] for info in stacks.values()), expert_bytes, dense_bytes


def request_bytes(file) -> int:
    """Bytes of the largest matrix of an expert of an open GGUF file: what one read asks for."""
    return max(info.nbytes // info.shape[0] for name, info in file.tensors.items() if _STACK.fullmatch(name))


def capture(name: str) -> Routes:
    """One of CAPTURES, a phone's record of real routing; TraceError when the installed file is not the one published."""
    known("capture", name, CAPTURES, TraceError)
    path = data_file(f"routes/{name}.csv.gz")
    if hashlib.sha256(path.read_bytes()).hexdigest() != CAPTURES[name]:
        raise TraceError(f"{path}: the SHA-256 differs from that of the published capture: install kit again")
    return read_routes(path)


def read_routes(path: str | Path) -> Routes:
    """Routes from a file, also gzipped, or the capture of that name.

    The file holds BigMoeOnEdge's route_trace v1, the ``layer,expert`` CSV of llama.cpp's moe-trace, or JSON lines of
    ``{"layer", "token", "ids"}`` (`kit generate --routes` writes a line about the model before them). TraceError names the
    file, and the line that is none of these.
    """
    if str(path) in CAPTURES:
        return capture(str(path))
    refuse_misspelled(path, CAPTURES)
    path = Path(path)
    if not path.exists():
        told = f"a record of kit generate --routes, a model, or one of {', '.join(CAPTURES)}"
        raise TraceError(f"{path}: no such file; give {told} (kit fetch lists models)")
    lines = lines_of(path)
    head = next((line.strip() for line in lines if line.strip()), "")
    if not head:
        raise TraceError(f"{path}: is empty")
    reader = _json_lines if head.startswith("{") else _route_trace if head.startswith("#") else _moe_trace
    try:
        routes = reader(path, lines)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: the model line (line 1) is invalid: {shown(error, 200)}") from None
    if (routes.layer >= routes.layers).any():
        raise TraceError(f"{path}: uses layer {routes.layer.max()}, but gives bytes for only {routes.layers} layers")
    if not (routes.token >= routes.prompt).any():
        raise TraceError(
            f"{path}: names no expert" + f" of a token after the prompt's {routes.prompt}" * bool(len(routes.layer))
        )
    return routes


def _route_trace(path, lines) -> Routes:
    """BigMoeOnEdge's --route-trace: comments with the model's geometry, then a row for each routed expert."""
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    head = "\n".join(lines[:first])
    if "route_trace v1" not in head or first == len(lines):
        raise TraceError(
            f"{path}: line 1: unknown format; expected one of: route_trace v1; CSV with the columns layer,expert; "
            'JSON lines {"layer": 0, "token": 0, "ids": [1, 2]}'
        )
    facts = dict(re.findall(r"(\w+)=(\S+)", head.partition("\n# layer=")[0]))
    matches = re.findall(r"layer=(\d+) expert_bytes=(\d+) dense_bytes=(\d+)", head)
    given = {int(layer): (int(expert), int(dense)) for layer, expert, dense in matches}
    rows = numbers(path, lines[first + 1 :], lines[first], ("phase", "step", "layer", "expert", "residency"), first + 1)
    phase, step, layer, expert, residency = rows
    depth = above(np.array([*filter(possible, given), *layer], np.int64))
    both = (sizes([given.get(number, (0, 0))[which] for number in range(depth)]) for which in (0, 1))
    experts = max(count(int(facts.get("n_expert", 0))), above(expert))
    name, prompt = shown(facts.get("model", path.name), 200), above(step[phase == 0])
    return Routes(name, step, layer, expert, prompt, experts, *both, residency > 0)


def _moe_trace(path, lines) -> Routes:
    """llama.cpp's moe-trace (its pull request 28544): a row for each routed expert, layers in order; no tokens, no sizes.

    A pass ends where the layer falls. The fewest rows of a layer in a pass are one token's; a pass with more is a prompt's.
    """
    first = next(number for number, line in enumerate(lines, start=1) if line.strip())
    layer, expert = numbers(path, lines[first:], lines[first - 1], ("layer", "expert"), first)
    number = np.concatenate([[0], np.cumsum(np.diff(layer) < 0)])[: len(layer)]
    _, place, counts = np.unique(number * 10_000 + layer, return_inverse=True, return_counts=True)
    rows = counts[place]  # of the same pass and layer
    return _unsized(path.name, number, layer, expert, above(number[rows > rows.min(initial=len(layer))]))


def _json_lines(path, lines) -> Routes:
    head, token, layer, expert = None, [], [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = from_json(line)
            before, head = head, {} if head is None else head
            if before is None and isinstance(row, dict) and "layer" not in row:
                head = row
                continue
            ids = [index(one) for one in row["ids"]]
            where = [index(row["token"])] * len(ids), [index(row["layer"])] * len(ids)
            if not possible(index(row["layer"]), index(row["token"]), *ids):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise TraceError(f'{path}: line {number}: expected {{"layer": 0, "token": 0, "ids": [1, 2]}}') from None
        for column, cells in zip((token, layer, expert), (*where, ids), strict=True):
            column += cells
    rows = (np.array(column, np.int64) for column in (token, layer, expert))
    routes = _unsized(head.get("model", path.name), *rows, count(head.get("prompt", 0)))
    if experts := head.get("expert_bytes"):
        dense = head.get("dense_bytes", [0] * len(experts))
        if len(dense) != len(experts):
            raise ValueError(f"it gives expert_bytes of {len(experts)} layers and dense_bytes of {len(dense)}")
        routes = replace(routes, expert_bytes=sizes(experts), dense_bytes=sizes(dense))
    return replace(routes, experts=max(routes.experts, count(head.get("experts", 0))))


def _unsized(name, token, layer, expert, prompt) -> Routes:
    unknown = np.zeros(above(layer), np.int64)
    return Routes(shown(name, 200), token, layer, expert, prompt, above(expert), unknown, unknown)


def of_spans(spans: Iterable, file) -> Routes:
    """The routes of a decode by the kit's pass, from the spans of its trace and the open file: token 0 is the prompt."""
    uses: dict[tuple[int, int, int], None] = {}
    for span in spans:
        if span.what == "linear" and (use := _USE.fullmatch(span.tensor)):
            uses[span.token, int(use[1]), int(use[2])] = None
    if not uses:
        raise TraceError(f"{file.path}: this model has no experts, so there is no routing to record")
    token, layer, expert = np.array(list(uses), np.int64).T
    return _unsized(model_name(file.path), token, layer, expert, 1).sized(file)


def write_routes(routes: Routes, path: str | Path) -> Path:
    """Write JSON lines, gzipped where ``path`` ends in .gz: a line about the model, then {layer, token, ids}."""
    head = {"model": routes.name, "prompt": routes.prompt, "experts": routes.experts}
    head |= {"expert_bytes": routes.expert_bytes.tolist(), "dense_bytes": routes.dense_bytes.tolist()}
    rows: dict[tuple[int, int], list[int]] = {}
    for token, layer, expert in zip(routes.token.tolist(), routes.layer.tolist(), routes.expert.tolist(), strict=True):
        rows.setdefault((token, layer), []).append(expert)
    lines = [json.dumps(head), *(json.dumps({"layer": lay, "token": tok, "ids": ids}) for (tok, lay), ids in rows.items())]
    path, text = Path(path), "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
