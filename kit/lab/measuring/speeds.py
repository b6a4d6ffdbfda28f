"""What `kit generate` says of its speed on standard error."""

from kit.lab.measuring import measurements, slices
from kit.lab.measuring.busy import Busy
from kit.system import memory_available
from kit.units import format_bytes, format_rate, format_seconds


def bound_of(answer, limited: bool, busy: Busy | bool = False):
    """The GB/s at which memory reads, the best known of this machine or else now, and the tokens per second that allows. Now is
    not measured where memory is ``limited`` or short: the probe would take of it. On a ``busy`` machine there is no bound."""
    known = measurements.shared().best(measurements.READ, "GB/s")
    now = [] if limited or memory_available() < slices.FREE else [slices.now_gbps()]
    read = max([*now, *(known.samples if known else ())], default=None)
    decoded = answer.nbytes[1:]
    least = sum(decoded) / (len(answer.tokens) - 1) / (read * 1e9) if decoded and read else 0
    return {"read_gbps": read, "decode_bound_tokens_per_second": 1 / least if least and not busy else None}


def lines_of(answer, speed, first: str = ""):
    """The lines of ``speed``, which is kit.model.generate.Generation.speed with what the command adds."""

    def rate(name):
        return f"{speed[f'{name}_tokens_per_second']:10.2f} tok/s {speed[f'{name}_gb_per_second']:8.1f} GB/s read"

    yield ""
    if first:
        yield first
    yield f"kernels      {format_seconds(speed['kernels_seconds']):>10}   warm-up: kernels compiled or loaded, file read"
    yield f"first token  {format_seconds(answer.ttft):>10}"
    yield f"prefill    {rate('prefill')}   {len(answer.prompt)} tokens"
    if len(answer.tokens) > 1:
        yield f"decode     {rate('decode')}   {len(answer.tokens) - 1} tokens"
    if bound := speed["decode_bound_tokens_per_second"]:
        yield f"limit      {bound:10.2f} tok/s {speed['read_gbps']:8.1f} GB/s, the most that memory gave here"
    yield f"peak memory  {format_bytes(speed['peak_memory_bytes']):>10}"
    yield f"weights      {speed['linear']}, {speed['cache']}"
    if speed["memory"]:
        yield f"memory       {speed['memory']}"
    if experts := speed["experts"]:
        hits = f"{experts['hit_rate']:.1%} of {experts['hits'] + experts['misses']:,} uses hit"
        read = f"{format_bytes(experts['bytes_loaded'])} read, {format_seconds(experts['waited_seconds'])} spent waiting"
        yield f"experts      {hits}, {read}"
    for row in speed["depths"]:
        kinds = (f"{name} {format_seconds(row[name])}" for name in row if name not in ("positions", "by", "token"))
        token = f"{format_seconds(row['token']):>10}, {format_rate(1 / row['token'])} tok/s"
        yield f"after {row['positions']:<7,}{token}   {', '.join(kinds)} (measured)"
    yield f"forward pass {speed['via']}"
    yield f"stopped      {answer.stopped}"
    yield from (f"pages        {line}" for line in speed["pages"])
    if speed["faster"]:
        yield f"faster       {speed['faster']}"
    if speed.get("draft"):
        yield f"draft        {speed['draft']['told'].removeprefix('draft ')}"
