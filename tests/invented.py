"""A machine and peers that nobody has: what is computed from them is the same wherever the tests run."""

import pandas as pd

from kit.lab.engines.owner import Owner
from kit.lab.engines.watch import Holding, Seen
from kit.lab.explaining import causes, peers, remedies, running_words
from kit.lab.explaining.causes import Window
from kit.lab.findings import own_engine
from kit.lab.measuring.machine import Machine

MACHINE = Machine(
    "m", "cpu", 2, 2**34, 2**34, read_gbps=20.0, write_gbps=10.0, copy_gbps=15.0, fresh_gbps=5.0, f32_gflops=100.0
)
ENGINES = pd.DataFrame({"load": 0.1, "first": 0.1, "tok/s": [10.0, 20.0], peers.TIMES: [0.5, 1.0], "agree": 8, "resident": 1e8,
    "cores of others": 0.0, "reason": ""},
    ["kit", peers.PEER]).assign(**dict.fromkeys((peers.KL, "± nats", peers.SAME), float("nan")))  # fmt: skip


def server(seconds=0.1, waited=0.7, others=0.1, threads=8, least=0.02):
    """A server whose threads wait for two cores: kit.lab.findings.own_engine.Explained."""
    seen = Seen(1.0, (waited,) * threads, (1 - waited,) * threads, cores=2, others=others)
    windows = [Window(10, seconds * (1 + 0.01 * number), seen) for number in range(3)]
    rows = [causes.split(window, least) for window in windows]
    facts = remedies.ServerFacts("llama-server", Owner(None), Holding(), 1e6, 2e6, 20.0)
    found = remedies.explained(windows, rows, facts, causes.DECODE, {})
    data = pasted_data(seconds, threads, least, [running_words.plain(each) for each in found])
    return own_engine.Explained("xllamacpp", windows, rows, found, least, data=data)


def pasted_data(seconds, threads, least, found):
    """What that server's answer is as plain data, of a file of 400 MB on a machine of 20 GB/s."""
    engine = {"name": "llama-server", "version": "b1", "threads": threads, "label": "xllamacpp"}
    decode = {"name": "tg10", "seconds": seconds, "tokens_per_second": 1 / seconds, "interval": [seconds, seconds],
        "others": 0.1}  # fmt: skip
    prompt = {"name": "pp64", "seconds": seconds / 4, "tokens_per_second": 4 / seconds, "interval": None}
    record = {"engine": engine, "decode": decode, "prompt": prompt, "mbu": least / seconds, "causes": found}
    work = {"token_bytes": 4e8, "token_operations": 1e9, "prompt_bytes": 4e8, "prompt_operations": 6e10, "tokens": 64}
    machine = {"id": "m", "cpu": "cpu", "cores_told": "2 cores", "bandwidth": 4e8 / least, "rates": {"int8": 1e12}}
    return record | {"engines": [record], "work": work, "machine": machine, "file": {"name": "a.gguf", "bytes": 4e8}}
