"""One value a quantity: what the pages of a run publish of each, from records, the engines' table and the store of the run."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from kit.lab.claims.records import Record
from kit.lab.engines.table import COMPARED, EXACT
from kit.lab.measuring import measurements
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.state import BUSY
from kit.lab.predicting.ways import BY_QUANTS, KEPT, KEPT_RATE
from kit.lab.report.run import Run

_OF_WAYS = "a token, "  # the quantity of a way in records
HERE = {"device": "cpu", "model": "", "mixture": "", "limit": ""}  # parameters of a record that tell what it is of


def values(run: Run, rows: Iterable[Record]) -> Iterator[Reading]:
    """Everything measured that a page, the index or the table of engines shows, under the names that records have; ``by`` says
    where."""
    for row in rows:
        if row.status == "ok" and row.how == "measured" and row.samples:
            given, busy = HERE | row.parameters, 2 * BUSY * bool(row.state.get("busy"))
            model, of = str(given["model"]), json.dumps([given[name] for name in HERE if name != "model"])
            name, unit, samples = row.quantity.removesuffix(BY_QUANTS), row.unit, tuple(row.samples)
            if name == KEPT_RATE and model:  # of generated models each page has its own
                name, unit, samples = KEPT.quantity, "s", tuple(1 / rate for rate in samples)
            by = row.notebook + BY_QUANTS * row.quantity.endswith(BY_QUANTS)
            yield Reading(name, model, samples, unit, of, busy, by, run.machine_id)
    if not (told := measurements.peers(run.folder)):
        return
    model, of = str(run.request.model), json.dumps([given for name, given in HERE.items() if name != "model"])
    for name, row in measurements.engines(told).items():
        way = COMPARED[name].quantity if name in COMPARED else _OF_WAYS + name
        yield Reading(way, model, row.samples, "s", of, row.others, row.by, run.machine_id)
    latest = {row.way: row for row in measurements.of_run(run.folder) if row.file == told.get("digest") and row.unit == "s"}
    for way, row in latest.items():
        name = EXACT.quantity if way == EXACT.label else _OF_WAYS + way
        yield Reading(name, model, row.samples, "s", of, row.others, f"{measurements.NAME}, {row.by}", row.machine)


def disagreements(run: Run, rows: Iterable[Record]) -> list[str]:
    """Two values of one quantity that differ beyond their spreads, of whatever size: a run shows one value of each. What other
    processes disturbed is stamped as that, and is not compared."""
    by_key, said = defaultdict(dict), []
    for one in values(run, rows):
        if not one.busy:
            by_key[one.key].setdefault(one.by, one)
    for (quantity, *_), of_one in by_key.items():
        apart = [pair for pair in combinations(of_one.values(), 2) if pair[0].apart(pair[1])]
        said += [f"{quantity}: {a.told} in {a.by}, {b.told} in {b.by}: two values of one measurement" for a, b in apart[:1]]
    return said
