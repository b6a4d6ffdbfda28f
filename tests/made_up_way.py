"""A made-up way to multiply, by its row alone: what every part of the kit then knows of it, as JSON on standard output.

A process of its own, because tables are made at import. int12 has the digits of int16, so the kernels are there and the results
are int16's.
"""

import json
import sys
from dataclasses import replace

from kit.products import PRODUCTS, Multiplied

PRODUCTS["int12"] = Multiplied("int12", 2, "round activations to twelve bits")  # before anything else is imported

from click.testing import CliRunner  # noqa: E402
from invented import MACHINE  # noqa: E402

import kit  # noqa: E402
from kit.cpu import crossings  # noqa: E402
from kit.hf import stored  # noqa: E402
from kit.lab.commands import cli  # noqa: E402
from kit.lab.engines.processes import ENGINES  # noqa: E402
from kit.lab.explaining import answer, answer_table, measured_ways, quants, tables, to_measure  # noqa: E402
from kit.lab.explaining.study import Study  # noqa: E402
from kit.lab.predicting import order, quality  # noqa: E402
from kit.lab.predicting.measured import measure_costs  # noqa: E402
from kit.lab.predicting.ways import BackingStore, Way  # noqa: E402


def main(path: str) -> dict:
    """``path``: a small model of a quantized format."""
    told = {"help": CliRunner().invoke(cli.main, ["generate", "--help"]).output}
    asked = ["generate", path, "--tokens", "1,2,3", "-n", "2", "--json", "--linear"]
    told["generated"] = [
        json.loads(CliRunner().invoke(cli.main, [*asked, f"fused-{kind}"]).stdout) for kind in ("int12", "int16")
    ]
    crossings.fastest = lambda *_: crossings.ROWS  # kernels sum in another order, and which is faster may be by a hair
    with kit.open(path) as file:
        logits = [kit.Transformer(kit.Weights(file), linear=f"fused-{kind}").logits([1, 2, 3]) for kind in ("int12", "int16")]
        told["same"] = bool((logits[0] == logits[1]).all())
        told["hf"] = "blocks-int12" in stored.WAYS
        told["quants"] = quants.WAYS["int12"].name in ENGINES and quants.WAYS["int12"].product.option
        told["quality"] = quality.PRECISIONS["int12 activations"].linear
        decode = order.order_of(file, 2)
        costs = measure_costs(file, decode.names)
        study = Study(file, lambda: MACHINE, 1 << 20, 2, whole=1 << 30)
        way = Way("NoCache", linear="fused-int12")
        ways = [way, replace(way, policy="Pinned", capacity=1 << 20, holds="pinned")]
        ways += [replace(way, policy="LRU", capacity=1 << 20, holds="slots")]
        told["labels"] = [each.label for each in ways]
        told["commands"] = [answer.command(study, each) for each in ways]
        every = tables.candidates(lambda dtype: 1, 1 << 20, 1 << 20), tables.candidates(lambda dtype: 1, 1 << 20, None, 1 << 20)
        told["candidates"] = [way in every[0], ways[1] in every[0], ways[2] in every[1]]
        disk = BackingStore(2.0)
        predicted = {each.way: each.seconds for each in tables.advice(file, decode, costs, MACHINE, 1 << 20, disk, 1 << 20)}
        told["predicted"] = [predicted[each] for each in ways[:2]]
        told["measured"] = [measured_ways.measure(each, file, decode, 2).seconds for each in ways[:2]]
        told["short"] = answer_table.SHORT.get("int12 activations")
        told["engine"] = [name for name, each in to_measure.ENGINE_WAYS.items() if each == way]
    return told


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
