"""kit experts: compares caches for the experts of a mixture larger than memory, with a record of its routing."""

import click

SPEEDS = (1, 5, 10)  # tokens per second: the output gives the minimum memory for each


@click.command("experts")
@click.argument("routes")
@click.argument("model", required=False)
@click.option("--memory", required=True, metavar="SIZE", help="Memory for the whole program, such as 8GiB.")
@click.option("--disk", metavar="SPEED", help="Speed of direct reads, such as 2GB/s.  [default: measured on MODEL]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--report", type=click.Path(file_okay=False), metavar="DIR", help="Write notebook 10 on these routes to DIR, as HTML."
)
def command(routes, model, memory, disk, as_json, report):
    """Show which cache suits the experts of a mixture.

    ROUTES is a record of the experts that each token used: from `kit generate --routes`, from BigMoeOnEdge's --route-trace,
    from llama.cpp's moe-trace (then name MODEL, a GGUF file, for the sizes), or JSON lines of layer, token, ids. The names
    gptoss, qwen and gemma are records that come with kit. If you give a GGUF file or a model's name (kit fetch) instead, kit
    simulates the routing (and says so).

    \b
    kit experts qwen --memory 4GiB --disk 2GB/s
    kit experts routes.jsonl.gz mixture.gguf --memory 8GiB
    kit experts mixture.gguf --memory 8GiB --json | jq .advice

    Exit code: 0 success, 2 error.
    """
    from contextlib import nullcontext
    from pathlib import Path

    from kit.errors import CacheError
    from kit.lab.measuring import measurements, slices
    from kit.lab.measuring.busy import watching
    from kit.lab.measuring.disk import random_gbps
    from kit.lab.measuring.process import process_bytes
    from kit.lab.predicting import routing
    from kit.lab.predicting.expert_caches import ExpertBudget, dense_bytes
    from kit.lab.predicting.opening import open_file
    from kit.lab.predicting.routes import CAPTURES, read_routes, request_bytes
    from kit.model.footprint import added_by_slots
    from kit.units import finite, parse_bytes, to_json

    try:
        room = parse_bytes(memory)
        speed = None if disk is None else parse_bytes(disk.removesuffix("/s")) / 1e9
    except ValueError as error:
        raise CacheError(f"--memory or --disk: {error}") from None
    if speed == 0:
        raise CacheError("--disk 0 would read nothing; give a speed such as 2GB/s")
    if (drawn := routing.is_model(routes)) and model:
        raise CacheError(
            f"{routes} is a model: use `kit experts {routes} --memory {memory}`, or give a record of routes before {model}"
        )
    path, basis = (routes if drawn else model), []
    if report:
        from kit.gguf.sources import absolute
        from kit.lab.report.index import one_page
        from kit.lab.report.run import Request

        if not drawn:
            read_routes(routes)  # an error of the record comes before anything runs
        given = {"routes": routes if routes in CAPTURES else absolute(routes), "memory": room}
        texts = tuple(f"{name}={value}" for name, value in given.items())
        click.echo(one_page(Path(report), Request("quick", absolute(path) if path else "", ("10",), texts)))
        return
    with open_file(path, blocks=True) if path else nullcontext() as file:
        routed = routing.given(routes, model or "")
        dense, each = (dense_bytes(file), request_bytes(file)) if file else (int(routed.dense_bytes.sum()), 0)
        large = file and file.largest
        process = process_bytes(file or None) + (added_by_slots(file) if file else 0)
    if drawn:
        basis.append(
            f"simulated routing, because no record was given: {len(routed.decoded)} tokens that use {routed.used:.0f} of "
            f"{routed.experts} experts are {routed.name.replace(':', ' with')}, the mean of {len(routing.FITTED)} captures; "
            "record your own with kit generate --routes"
        )
    if len(routed.decoded) == 1:
        basis.append("only one decoded token, so no expert can be seen to be used again: record more tokens")
    if not path:
        basis.append(f"dense weights from the record ({len(routed.dense_bytes)} layers, without embedding and output)")
    if speed is None and path:
        speed = max(random_gbps(large, readers, each) for readers in (1, 2, 4))
        basis.append(f"disk of the model, measured: {speed:.2f} GB/s with direct reads of one expert's matrix each")
    elif speed is None:
        basis.append("disk speed unknown: give --disk 2GB/s, or MODEL, to see seconds")
    with watching() as busy:
        now = slices.now_gbps()
    best = measurements.shared().best(measurements.READ, "GB/s")
    read = max([now, *(best.samples if best else ())])
    known = f", its best so far, on {best.at[:10]}; {now:.1f} now" if read > now else ", measured now"
    basis.append(f"memory: {read:.1f} GB/s{known}; each byte is read once, arithmetic is free, nothing overlaps")
    budget = ExpertBudget(routed, room, dense, speed, read, process)
    table = budget.table()
    least = [{"tokens_per_second": rate, "bytes": budget.least_memory(rate)} for rate in SPEEDS] if speed else []
    if busy:
        least = None
    facts = {
        "routes": routed.name, "decoded": len(routed.decoded), "prompt": routed.prompt, "layers": routed.layers,
        "experts": routed.experts, "used": routed.used, "cycle_bytes": routed.cycle, "memory_bytes": room,
        "room_bytes": budget.room, "judged": budget.split()[2],
        "dense_bytes": dense, "disk_gbps": speed, "read_gbps": read, "basis": basis,
        "policies": table.reset_index().to_dict("records"), "least_memory": least,
        "advice": _NONE if least is None else budget.advice(table), "process_bytes": budget.process,
    } | busy.facts  # fmt: skip
    click.echo(to_json(finite(facts)) if as_json else "\n".join([*filter(None, [busy.line]), *_lines(facts)]))


_NONE = "No advice: the machine is busy. Ask again when nothing else runs."


def _lines(facts):
    from kit.units import format_bytes, format_rate, format_seconds

    yield f"{facts['routes']}: {facts['decoded']} decoded tokens; each uses {facts['used']:.3g} of {facts['experts']} experts"
    yield "per layer in this record, which may be fewer than its model's usual number"
    yield (
        f"{format_bytes(facts['memory_bytes'])}: {format_bytes(facts['process_bytes'])} for the process, "
        f"{format_bytes(facts['dense_bytes'])} for dense weights, "
        f"{format_bytes(facts['room_bytes'])} for experts; one token uses {format_bytes(facts['cycle_bytes'])} of experts"
    )
    yield f"hits are counted in the last {facts['judged']} tokens; the prompt and the first half fill the cache"
    yield ""
    yield f"{'policy':<34}{'slots/layer':>14}{'hits':>8}{'read/token':>15}{'time/token':>11}{'tok/s':>9}"
    rows = facts["policies"]
    if all(row | {"policy": ""} == rows[0] | {"policy": ""} for row in rows):  # as where all experts fit
        rows = [rows[0] | {"policy": "every policy alike"}]
    for row in rows:
        time = format_seconds(row["a token, s"]) if facts["disk_gbps"] else "-"
        speed = format_rate(row["tok/s"]) if facts["disk_gbps"] else "-"
        hits, read = f"{row['hits']:.1%}", format_bytes(row["read, B"])
        yield f"{row['policy']:<34}{row['slots a layer']:>14.1f}{hits:>8}{read:>15}{time:>11}{speed:>9}"
    yield ""
    for goal in facts["least_memory"] or ():
        least, speed = goal["bytes"], f"{goal['tokens_per_second']} tok/s"
        yield f"{speed:<10} needs {format_bytes(least) if least else 'faster memory or a faster disk'}"
    yield ""
    yield from (f"based on: {line}" for line in facts["basis"])
    yield facts["advice"]
