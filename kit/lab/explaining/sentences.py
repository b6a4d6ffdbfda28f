"""What kit explain and notebook 09 say of a study: sentences, and the same as plain data."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from kit.lab.explaining import answer, answer_table, beside_kit, depth, opportunities, tables
from kit.lab.explaining.elsewhere import compressibility
from kit.lab.explaining.lines import paragraph, wrapped
from kit.lab.explaining.study import Study
from kit.lab.explaining.tables import as_text, formatted, short
from kit.lab.explaining.to_measure import measure_best, measure_engines
from kit.lab.predicting import quality
from kit.lab.predicting.remembered import contexts
from kit.lab.predicting.ways import used_tensors
from kit.model.hyperparameters import read_config
from kit.system import cpu_facts
from kit.units import format_bytes, format_count, format_rate, format_seconds, printable

_FEW = 20  # a cache of less than this part of the float32 weights is none
_TABLES = 0.1  # of all bytes, from which on tables that are read by rows are said


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
            f"No token was generated ({ran.reason}). The measurements below use every tensor once, in the order of their "
            "roles, in place of a token."
        )
    if study.part is not None:
        some = ", ".join(map(str, study.layers[:8])) + ", ..." * (len(study.layers) > 8)
        text += (
            f" kit measured {len(study.layers)} of {study.facts['layers']} layers ({some}), at least one per combination of "
            "formats, and the tensors outside the layers. Figures for the whole file are computed from these; `--thorough` "
            "measures all layers."
        )
    if study.gives_way:
        text += (
            " On a busy machine prompts, depths and rounding to float16 and bfloat16 are left out, and the text is short; "
            "`--thorough` has them."
        )
    if order.assumed:
        drawn = f"with popularity falling as rank^-{study.skew:g}" if study.skew else "evenly"
        text += f" Assumed from the metadata: {order.assumed}; experts are drawn {drawn}."
    if order.left_out:
        text += (
            f" {len(order.left_out)} of {study.facts['tensors']} tensors are left out of all times, because kit does not know "
            "their format; the limit counts their bytes."
        )
    if study.room.disk:
        speed = f"{study.room.disk.gbps:.1f} GB/s past the page cache; the limits include it"
        text += f" The file does not fit in {format_bytes(study.room.disk.room)}: what cannot stay is read at {speed}."
    return text


def advise(found: answer.Conclusion) -> str:
    """The answer with what was not measured and why; a command is a line of its own."""
    study = found.study
    text = [f"`{line.strip()}`" if line.startswith("    ") else line for line in answer.concluded(found)]
    more = " ".join([*_unmeasured(study), *filter(None, [experts(study), mac(study)])])
    return "\n".join([*text, more]).strip()


def _unmeasured(study: Study) -> list[str]:
    """What was not measured, and why: a sentence each."""
    return [f"{way.told[0].upper()}{way.told[1:]} {why}." for way, why in (study.part or study).unmeasured.items()]


def _contexts(study: Study) -> list[dict]:
    return contexts(read_config(study.file)) if study.runs else []


def fits(study: Study) -> str:
    """Whether the file fits, in a sentence."""
    blocks, whole = sum(use.nbytes for use in study.uses), study.room.limit
    of = f"{format_bytes(whole)} {'for the whole process' if study.whole else 'that are free'}"
    yes = "Yes" if study.room.fits else "No"
    beside = study.room.beside
    parts = f"{format_bytes(blocks)} of blocks and {format_bytes(beside)} for the process"
    text = f"{yes}: {format_bytes(blocks + beside)}, {parts}, of {of}."
    if (tables := sum(use.nbytes for use in study.uses if use.is_rows)) > _TABLES * blocks:
        text += f" {format_bytes(tables)} of them are tables of which a token reads a few rows: they may stay on the disk."
    if lengths := _contexts(study):
        last = lengths[-1]
        text += f" A context of {last['positions']:,} takes {format_bytes(last['kv']['float32'])} of KV cache in float32"
        text += f", and {format_bytes(last['states'])} of states, which each token reads and writes." if last["states"] else "."
    if study.room.fits and not study.trace:
        text += " Everything fits, so no policy of a cache matters (`--all` has them)."
    return text


def experts(study: Study) -> str:
    """The command for a mixture that does not fit: which cache suits its experts; "" for any other file."""
    if study.room.fits or not any(use.used < use.of and not use.is_rows for use in study.uses):
        return ""
    room = format_bytes(study.room.limit).replace(" ", "")
    where = study.file.path or "FILE"
    told = "This mixture does not fit"
    return f"{told}: `kit experts {shlex.quote(str(where))} --memory {room}` says which cache suits its experts."


def mac(study: Study) -> str:
    """On a Mac whose memory the file does not fit: what becomes of what is mapped, locked and read; "" elsewhere."""
    if study.room.fits or cpu_facts().get("memory") != "unified":
        return ""
    blocks, floats = compressibility(study.file)
    return (
        "macOS drops mapped pages that do not fit, and reads them again by faults. It compresses copies (these blocks to "
        f"{blocks:.0%}, their float32 to {floats:.0%}) and swaps; what is locked stays."
    )


def of_a_use(study: Study) -> str:
    """What a weight that is not kept costs at every use, however small it is; "" where no vector is used."""
    cost = {kind: cost.load["float32"] + cost.multiply["float32"] for kind, cost in study.costs.items()}
    tensors, names = used_tensors(study.file, study.order), study.order.tokens[-1]
    vectors = [cost[tensors[name].kind] for name in names if len(tensors[name].kind.shape) == 1]
    if not vectors:
        return ""
    least, uses = min(vectors), len(names)
    return (
        f"The quickest use of a tensor that is not cached took {format_seconds(least)} (lookup, buffer, spans): "
        f"{format_seconds(uses * least)} for the {uses} uses of a token, and {least * len(vectors) / sum(vectors):.0%} of "
        f"the time of its {len(vectors)} vectors."
    )


def largest(study: Study) -> str:
    """What the largest weight does to an LRU."""
    name, size = max(study.accesses.objects.items(), key=lambda item: item[1])
    return (
        f"The largest weight, {printable(name)}, is {format_bytes(size)} of {format_bytes(study.accesses.working_set)}: an "
        "LRU that is just large enough for it evicts all others at every token, so its curve can fall there."
    )


def sections(
    study: Study, compile: Callable[[], None], everything: bool = False, begun: dict | None = None
) -> Iterator[tuple[str, object, str]]:  # fmt: skip
    """(key, plain data for it, section of text) of everything, in the order in which it is known; "": no key, or no text.

    The answer comes first; ``everything``: all tables have text. ``compile`` is called before anything is measured.
    ``begun``: of quick.first, whose sentences stand above."""
    rows = lambda frame: frame.reset_index().to_dict("records")  # noqa: E731
    table = lambda title, frame: f"{title}\n{as_text(formatted(frame))}"  # noqa: E731
    more = lambda title, frame: table(title, frame) if everything else ""  # noqa: E731
    if said := bool(study.busy) or bool(begun and begun["busy"]):
        yield "", None, "" if begun and begun["busy"] else study.busy.line
    yield "", None, "" if begun else paragraph(what(study))
    yield "contexts", _contexts(study), ""
    yield "file", {key: value for key, value in study.facts.items() if key not in ("metadata", "tensor_table")}, ""
    yield "memory_bytes", study.memory, ""
    yield "whole_bytes", study.whole, ""
    compile()
    measure_engines(study)
    if not study.engines:
        measure_best(study)
    found = answer.of(study)
    lines = answer.told(found)
    lines = lines[1:] if said and study.busy else lines  # its first line is the same
    data = found.data | {"table": [row._asdict() for row in answer.table(found)]}
    yield "answer", data, "\n".join(map(wrapped, lines))
    if text := "" if study.busy else beside_kit.flags(found):
        yield "", None, paragraph(text)
    data, text = beside_kit.prompt(study)
    yield "prompt", data, paragraph(text) if text and not study.busy else ""
    yield "", None, f"DOES IT FIT?\n{paragraph(fits(study))}"
    data = study.parts()
    token = data["seconds"].sum()
    title = f"WHERE A TOKEN'S TIME GOES: {format_seconds(token)} ({format_rate(1 / token)} tok/s), kit, exact"
    data = data.assign(share=None) if study.busy else data
    yield "parts", rows(data), "" if study.busy else table(title, data)
    data = depth.of(study)
    title = f"A TOKEN BY DEPTH (float32 KV cache; least: at {study.limit_gbps:.1f} GB/s)"
    why = paragraph(depth.falls(data))
    yield "depths", data, "\n".join(filter(None, [table(title, depth.table(data)), why])) if data else ""
    measure_best(study)
    changes = opportunities.gather(study)
    told = "" if study.busy else opportunities.told(study, changes)
    yield "opportunities", [each._asdict() for each in changes], told
    data = study.advice()
    title = "ALL WAYS (first, what kit generate does by itself; memory of the whole process)"
    shown = "" if study.busy else more(title, short(data))
    yield "advice", rows(data.assign(faster=None) if study.busy else data), shown
    yield "machine", {key: value for key, value in asdict(study.machine).items() if key not in ("samples", "methods")}, ""
    part = study.part or study
    run = {"runs": not part.order.reason, "reason": part.order.reason, "left_out": list(study.order.left_out)}
    run |= {"layers": study.layers, "assumed": study.order.assumed, "disk": study.room.disk and study.room.disk._asdict()}
    yield from ((key, value, "") for key, value in run.items())
    yield "seconds_per_token_from_blocks", [] if study.part else list(part.order.seconds), ""
    plain = [
        {"way": way.label, "seconds": list(data.samples), "hit_rate": None, "resident": 0} | data.row
        for ran in {id(each): each for each in (study, part)}.values() for way, data in ran.measured.items()
    ]  # fmt: skip
    title = f"MEASURED, {len(study.layers)} OF {study.facts['layers']} LAYERS (seconds per token of these alone)"
    yield "measured", plain, more(title, study.checked()) if study.part and part.measured else ""
    yield "not_measured", {way.label: why for way, why in part.unmeasured.items()}, ""
    data = study.quality
    yield "no_quality", data if isinstance(data, str) else "", rounding(data)
    yield "quality", [] if isinstance(data, str) else rows(data), ""
    yield from _tables(study, everything, rows, table, more)
    yield "says", [what(study), how(study), advise(found)], _rest(study)


def rounding(data) -> str:
    """The table of kit.lab.predicting.quality in 80 columns, or why there is none."""
    title = "WHAT ROUNDING DOES TO THE ANSWERS"
    if isinstance(data, str):
        return f"{title}\n{paragraph(f'Not measured: {data}')}"
    title += f" ({int(data.tokens.iloc[0]):,} positions, one standard error)"
    narrow = quality.with_errors(data).rename(columns={"KL to float32 (nats)": "KL (nats)"}).drop(columns="kit perplexity")
    return f"{title}\n{as_text(narrow.rename(index=answer_table.SHORT).rename_axis('precision'))}"


def _tables(study, everything, rows, table, more):
    """What only some need: tables that say nothing where everything fits and all backends agree."""
    yield "holds", rows(frame := tables.held(study.file, study.uses)), more("WHAT THE WEIGHTS TAKE", frame)
    yield "roofline", rows(frame := study.bounds()), more(f"ROOFLINE (memory reads {study.read_gbps:.1f} GB/s)", frame)
    title = f"HITS BY POLICY ({format_bytes(study.memory)} of float32, after the first token)"
    frame = tables.policies(study.accesses, study.memory)
    matters = not study.room.fits and study.memory > study.accesses.working_set / _FEW
    yield "policies", rows(frame), table(title, frame) if everything or study.trace or matters else ""
    title = "WHERE A TOKEN'S TIME GOES, all ways (dequantized each time, kept in float32, from blocks)"
    yield "families", rows(frame := tables.families(study.file, study.order, study.costs, study.parts())), more(title, frame)
    if everything and (own := of_a_use(study)):
        yield "", None, paragraph(own)
    frame = tables.exactness_of(study.file)
    differs = not (frame.drop(columns="weights").isin(["equal"]) | frame.drop(columns="weights").isna()).all(axis=None)
    title = "EXACTNESS (against gguf-py, on rows of this file)"
    yield "exactness", rows(frame), table(title, frame) if everything or differs else ""


def _rest(study: Study) -> str:
    """How all this was had, and what only some files need."""
    best = "" if study.busy else answer.best_minutes(study)
    return paragraph(" ".join(filter(None, [best, how(study), *_unmeasured(study), experts(study), mac(study)])))
