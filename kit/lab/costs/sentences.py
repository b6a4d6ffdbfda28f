"""What kit explain and notebook 09 say of a study: sentences, and the same as plain data."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from kit.lab.costs import quality
from kit.lab.costs.elsewhere import compressibility
from kit.lab.costs.study import Study
from kit.lab.costs.tables import as_text, formatted, paragraph
from kit.lab.costs.ways import Prediction
from kit.system import cpu_facts, memory_available
from kit.units import format_bytes, format_count, format_seconds


def what(study: Study) -> str:
    """What the file is, in a sentence or two."""
    facts = study.facts
    types = ", ".join(f"{row['qtype']} {row['bytes'] / facts['working_sets']['blocks']['bytes']:.0%}"
                      for row in facts["types"][:3])  # fmt: skip
    blocks, decoded = (format_bytes(facts["working_sets"][name]["bytes"]) for name in ("blocks", "float32"))
    return (
        f"{Path(facts['path']).name}: architecture {facts['architecture']}, {format_count(facts['parameters'])} "
        f"parameters in {facts['tensors']} tensors and {facts['layers']} layers; {blocks} of blocks ({types}), "
        f"{decoded} once dequantized to float32."
    )


def how(study: Study) -> str:
    """Whether the file was run or only its tensors were, what was assumed, left out or cut."""
    order, ran = study.order, (study.part or study).order
    if not ran.reason:
        whose = " through transformers (kit.hf): the kit's own pass was not used" * (ran.via == "transformers")
        text = f"The order of weight accesses was recorded from a decode of {len(ran.tokens)} tokens{whose}."
    else:
        text = (
            f"No token was generated ({ran.reason}): a token stands for every tensor used once, in the order of their "
            "roles, and what is measured below is that walk."
        )
    if study.part is not None:
        some = ", ".join(map(str, study.layers[:8])) + ", ..." * (len(study.layers) > 8)
        text += (
            f" Run and measured were {len(study.layers)} of {study.facts['layers']} layers ({some}) and what "
            "lies outside all layers: one of each combination of formats at least; `--thorough` takes all of them. What is "
            "said of the whole file is computed from their costs."
        )
    if order.assumed:
        drawn = f"with popularity falling as rank^-{study.skew:g}" if study.skew else "evenly"
        text += f" Assumed from the metadata: {order.assumed}; experts are drawn {drawn}."
    if order.left_out:
        text += f" Left out, for their format is not known: {len(order.left_out)} of {study.facts['tensors']} tensors."
    if study.disk:
        text += (
            f" The file does not fit beside {format_bytes(study.memory)} of weights in {format_bytes(study.disk.room)} of "
            f"free memory: what cannot stay is read at {study.disk.gbps:.1f} GB/s past the page cache, in the leasts too."
        )
    return text


def advise(study: Study) -> str:
    """What to do, in sentences, with what was measured."""
    now, *others = study.predictions
    text = [f"Now, with an LRU of {format_bytes(study.memory)} in float32: {_speed(study, now)}."]
    for found in others[:2]:
        label, rounds = found.way.label, quality.lost(found.way.precision, study.__dict__.get("quality"))
        text.append(
            f"{label[0].upper()}{label[1:]}: {_speed(study, found)}; {rounds}; {format_bytes(found.held)} held "
            f"and {format_bytes(found.pages)} of the file in the page cache."
        )
    if now.held > study.memory:
        text.append(f"With the largest weight that misses, dequantized beside it, that LRU holds {format_bytes(now.held)}.")
    text += [f"{way.label[0].upper()}{way.label[1:]} {why}." for way, why in (study.part or study).unmeasured.items()]
    return " ".join([*text, *filter(None, [experts(study), mac(study)])])


def experts(study: Study) -> str:
    """The command for a mixture that does not fit: which cache suits its experts; "" for any other file."""
    if study.fits or not any(use.used < use.of and not use.is_rows for use in study.uses):
        return ""
    room = format_bytes(memory_available()).replace(" ", "")
    where = study.file.path or "FILE"
    told = f"This mixture does not fit beside {format_bytes(study.memory)} of weights"
    return f"{told}: `kit experts {where} --memory {room}` says which cache suits its experts."


def mac(study: Study) -> str:
    """On a Mac whose memory the file does not fit: what becomes of what is mapped, locked and read; "" elsewhere."""
    if study.fits or cpu_facts().get("memory") != "unified":
        return ""
    blocks, floats = compressibility(study.file)
    return (
        "Mapped pages that do not fit macOS drops, and reads again by faults; copies it compresses (these blocks to "
        f"{blocks:.0%}, their float32 to {floats:.0%}) and swaps; what is locked stays."
    )


def _speed(study: Study, found: Prediction) -> str:
    text = f"{format_seconds(found.seconds)} a token predicted"
    if real := study.measured.get(found.way):
        text += f", {format_seconds(real.seconds)} measured"
        if now := study.measured.get(study.predictions[0].way):
            text += f" ({now.seconds / real.seconds:.1f}x as fast, measured)" * (real is not now)
        text += ", while other processes used the cores" * real.disturbed
    return text


def sections(study: Study, compile: Callable[[], None]) -> Iterator[tuple[str, object, str]]:
    """(key, plain data for it, section of text) of everything, in the order in which it is known; "": no key, or no text.

    ``compile`` is called before anything is measured."""
    rows = lambda frame: frame.reset_index().to_dict("records")  # noqa: E731
    table = lambda title, frame: f"{title}\n{as_text(formatted(frame))}"  # noqa: E731
    yield "", None, paragraph(what(study))
    yield "file", {key: value for key, value in study.facts.items() if key not in ("metadata", "tensor_table")}, ""
    yield "memory_bytes", study.memory, ""
    yield "holds", rows(found := study.holds()), table("WHAT THE WEIGHTS TAKE", found)
    compile()
    yield "", None, paragraph(how(study))
    yield "machine", {key: value for key, value in asdict(study.machine).items() if key not in ("samples", "methods")}, ""
    part = study.part or study
    run = {"runs": not part.order.reason, "reason": part.order.reason, "left_out": list(study.order.left_out)}
    run |= {"layers": study.layers, "assumed": study.order.assumed, "disk": study.disk and study.disk._asdict()}
    yield from ((key, value, "") for key, value in run.items())
    yield "seconds_a_token_from_blocks", [] if study.part else list(part.order.seconds), ""
    yield "exactness", rows(found := study.exactness()), table("EXACTNESS (against gguf-py, on rows of this file)", found)
    title = f"HITS BY POLICY ({format_bytes(study.memory)}, after the first token)"
    yield "policies", rows(found := study.policies()), table(title, found)
    title = "WHERE A TOKEN'S TIME GOES (seconds a token: dequantized to float32 each time; kept; as blocks)"
    yield "families", rows(found := study.families()), table(title, found)
    if own := study.of_a_use():
        yield "", None, paragraph(own)
    study.measure_best()
    title = f"ROOFLINE (this machine reads {study.read_gbps:.1f} GB/s at its best)"
    yield "roofline", rows(found := study.bounds()), table(title, found)
    title = "WHAT TO CHANGE (seconds a token; times faster than the first row, which is what the reports did)"
    found = study.advice()
    yield "advice", rows(found), table(title, found.drop(columns=["hit rate", "factor"], errors="ignore"))
    title = f"MEASURED, {len(study.layers)} OF {study.facts['layers']} LAYERS (seconds a token of these alone)"
    plain = [
        {"way": way.label, "seconds": list(found.samples), "hit_rate": found.hit_rate, "resident": found.resident}
        for way, found in part.measured.items()
    ]
    yield "measured", plain, table(title, study.checked()) if study.part else ""
    yield "not_measured", {way.label: why for way, why in part.unmeasured.items()}, ""
    title, found = "WHAT ROUNDING DOES TO THE ANSWERS", study.quality
    if isinstance(found, str):
        yield "no_quality", found, f"{title}\n{paragraph(f'Not measured: {found}')}"
    else:
        title += f" ({found.tokens.iloc[0]:,} positions of English, one standard error)"
        yield "no_quality", "", f"{title}\n{as_text(quality.with_errors(found))}"
    yield "quality", [] if isinstance(found, str) else rows(found), ""
    yield "says", [what(study), how(study), advise(study)], paragraph(advise(study))
