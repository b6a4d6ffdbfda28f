"""Mutants: does a test fail when one operator or number of a module is another one?

    python tests/mutants.py kit.lab.claims.judge tests/test_judge.py          # every mutant
    python tests/mutants.py kit.cache.policies.queues tests/test_cache_policies.py --every 5
    make mutate ROOM=kit/lab/claims EVERY=5          # each module of a folder that TESTS has a row for

A mutant is made in a forked process: the functions and methods of the imported module take its code. Prints the line of each
that no test noticed and that ALIKE does not explain; the exit code is their number, 99 at most.
"""

import argparse
import ast
import copy
import functools
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType

import pytest

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.Not: ast.UAdd, ast.USub: ast.UAdd,
}  # fmt: skip


TESTS = {  # module -> the tests that should notice; in minutes on two cores
    "kit.lab.claims.judge": ["tests/test_judge.py", "tests/test_rejudged.py"],
    "kit.lab.claims.gates": ["tests/test_gates.py"],
    "kit.lab.claims.book": ["tests/test_ledger.py"],
    "kit.lab.claims.runs": ["tests/test_ledger.py", "tests/report/test_report_merge.py"],
    "kit.lab.claims.evidence": ["tests/test_evidence.py"],
    "kit.lab.claims.records": ["tests/test_records.py"],
    "kit.lab.claims.session": [
        "tests/test_session.py",
        "tests/test_records.py::test_a_session_writes_what_it_records",
        "tests/test_records.py::test_a_second_run_of_a_page_keeps_the_records_of_the_first",
        "tests/test_ledger.py::test_a_run_has_one_disk",
        "tests/test_ledger.py::test_a_part_of_the_row_judges_with_the_parameters_of_the_run",
    ],
    "kit.lab.claims.table": ["tests/test_records.py", "tests/test_ledger.py"],
    "kit.lab.measuring.minutes": ["tests/test_minutes.py"],
    "kit.lab.measuring.intervals": ["tests/test_intervals.py"],
    "kit.lab.measuring.limits": ["tests/test_limits.py", "tests/test_minutes.py"],
    "kit.lab.measuring.drift": ["tests/test_judge.py"],
    "kit.lab.measuring.sound": ["tests/test_conditions.py"],
    "kit.lab.measuring.conditions": ["tests/test_conditions.py"],
    "kit.lab.measuring.child": ["tests/test_child.py"],
    "kit.lab.measuring.state": ["tests/test_state.py"],
    "kit.lab.measuring.measure": ["tests/test_measure.py"],
    "kit.lab.measuring.slices": ["tests/test_probes.py"],
    "kit.lab.measuring.speeds": ["tests/test_probes.py"],
    "kit.lab.measuring.identity": ["tests/test_probes.py", "tests/test_machine.py"],
    "kit.lab.measuring.busy": ["tests/test_probes.py"],
    "kit.lab.measuring.arithmetic": ["tests/test_probes.py"],
    "kit.lab.measuring.disk": ["tests/test_probes.py"],
    "kit.lab.measuring.gpu": ["tests/test_probes.py"],
    "kit.lab.measuring.machine": [
        "tests/test_pages.py",
        "tests/test_probes.py",
        "tests/test_machine.py::test_a_probe_of_memory_is_larger_than_the_caches_and_writes_as_fast_as_a_way_does",
    ],
    "kit.lab.measuring.pages": ["tests/test_pages.py"],
    "kit.lab.measuring.kept": ["tests/test_measure.py"],
    "kit.lab.explaining.remedies": ["tests/test_remedies.py"],
    "kit.lab.explaining.second_turn": ["tests/test_remedies.py"],
    "kit.lab.engines.bounds_of": ["tests/test_remedies.py"],
    "kit.lab.engines.base": ["tests/test_remedies.py"],
    "kit.lab.explaining.tables": ["tests/test_parts.py"],
    "kit.cache.stats": ["tests/test_parts.py"],
    "kit.lab.measuring.group": ["tests/test_groups.py"],
    "kit.lab.measuring.process": ["tests/test_groups.py"],
    "kit.lab.engines.options": ["tests/test_turns.py"],
    "kit.lab.engines.turns": ["tests/test_turns.py"],
    "kit.lab.engines.meter": ["tests/test_turns.py"],
    "kit.lab.measuring.doctor": ["tests/test_doctor.py"],
    "kit.lab.explaining.answer": ["tests/test_answer.py", "tests/test_answer_table.py"],
    "kit.lab.explaining.opportunities": ["tests/test_answer.py"],
    "kit.lab.explaining.answer_table": ["tests/test_answer_table.py"],
    "kit.lab.explaining.causes": ["tests/test_causes.py"],
    "kit.lab.engines.watch": ["tests/test_causes.py"],
    "kit.lab.measuring.measurements": ["tests/test_measurements.py"],
    "kit.lab.findings.scalar": ["tests/test_cache_variants.py"],
    "kit.lab.findings.faults": ["tests/test_cache_faults.py"],
    "kit.lab.findings.reported": ["tests/test_first_token.py", "tests/test_tile_notebooks.py"],
    "kit.lab.predicting.divergence": ["tests/test_perplexity.py"],
    "kit.lab.predicting.losses": ["tests/test_perplexity.py"],
    "kit.lab.predicting.measured": ["tests/test_measured.py"],
    "kit.lab.predicting.quality": [  # others of the file compile kernels, for longer than a test may take here
        f"tests/test_perplexity.py::test_{name}"
        for name in (
            "a_way_that_rounds_is_asked_a_few_tokens_at_a_time_of_short_texts_or_where_prompts_do_not_round",
            "what_computes_the_same_text_elsewhere_is_a_row_next_to_the_precisions",
            "a_file_whose_text_takes_minutes_is_measured_only_when_asked",
            "weights_are_rounded_as_their_formats_are_defined",
            "what_a_precision_rounds_is_said_with_its_divergence_where_that_is_known",
            "quality_is_measured_once",
            "every_way_has_a_precision",
        )
    ],
    "kit.lab.predicting.ways": ["tests/test_predictions.py", "tests/test_ways.py", "tests/test_uses.py"],
    "kit.lab.predicting.room": ["tests/test_predictions.py"],
    "kit.lab.predicting.order": ["tests/test_predictions.py", "tests/test_uses.py"],
    "kit.lab.predicting.bounds": ["tests/test_cache_policies.py", "tests/test_experts.py"],
    "kit.lab.predicting.expert_caches": ["tests/test_experts.py"],
    "kit.lab.predicting.route_text": ["tests/test_cache_routes.py"],
    "kit.lab.predicting.routes": ["tests/test_cache_routes.py"],
    "kit.lab.predicting.routing": ["tests/test_predicting_by_hand.py"],
    "kit.lab.predicting.sampling": ["tests/test_predicting_by_hand.py"],
    "kit.lab.predicting.beforehand": ["tests/test_predicting_by_hand.py"],
    "kit.lab.predicting.attention": ["tests/test_predicting_by_hand.py"],
    "kit.lab.predicting.opening": ["tests/test_opening.py"],
    "kit.lab.predicting.remembered": ["tests/test_predicting_by_hand.py"],
    "kit.lab.predicting.oracle": ["tests/test_cache_traces.py"],
    "kit.quants.registry": ["tests/test_quants_dequantize.py"],
    "kit.quants.plain": ["tests/test_quants_dequantize.py"],
    "kit.lab.explaining.quants": ["tests/test_quants_choice.py"],
    "kit.lab.explaining.depth": ["tests/test_depth.py"],
    "kit.lab.drafts.costs": ["tests/test_draft_costs.py"],
    "kit.lab.report.ahead": [  # others of the file compile kernels
        f"tests/report/test_ahead.py::test_{name}"
        for name in (
            "a_notebook_gets_what_it_declares",
            "kernels_are_those_that_the_tensors_of_a_file_need",
            "formats_are_compiled_for_who_says_so_and_prompts_for_who_runs_the_model",
            "only_a_model_that_is_to_be_made_needs_a_folder_to_write_to",
            "what_compiles_kernels_gives_them_what_fits",
            "a_process_that_compiles_is_not_the_terminal_s_and_is_done_in_a_file_by_the_sources",
            "of_a_users_file_its_own_formats_are_compiled_and_no_model_is_made",
            "each_work_is_taken_by_one_process_alone",
            "a_process_that_helps_is_one_of_those_a_core",
            "processes_are_no_more_than_memory_holds",
        )
    ],
    "kit.lab.report.checklist": ["tests/report/test_report_pages.py"],
    "kit.lab.report.content": [  # others of the file render a whole run
        f"tests/report/test_report_pages.py::test_{name}"
        for name in (
            "markup_is_disarmed",
            "markdown_gives_headings_and_leads_to_pages",
            "text_is_what_a_terminal_would_show",
            "a_live_control_becomes_its_text",
            "a_figure_is_told_by_its_title",
            "heads_of_tables_say_of_what",
        )
    ],
    "kit.lab.report.gallery": [
        "tests/test_engines.py::test_the_gallery_takes_the_answer_of_a_server",
        "tests/test_engines.py::test_the_committed_gallery_is_the_page_of_its_files",
    ],
    "kit.lab.report.theme": [
        "tests/report/test_report_pages.py::test_the_scale_is_a_log_axis_of_what_is_possible_measured_and_reported",
        "tests/report/test_report_pages.py::test_a_run_of_ones_own_model_that_judges_nothing_has_no_claims",
        "tests/report/test_report_pages.py::test_what_a_page_is_given_stays_text",
    ],
    "kit.lab.report.sources": [
        "tests/report/test_runs_by_hand.py",
        "tests/report/test_reproduce.py::test_the_modules_that_a_notebook_uses",
    ],
    "kit.lab.report.html": ["tests/report/test_runs_by_hand.py"],
    "kit.lab.report.index": ["tests/report/test_runs_by_hand.py"],
    "kit.lab.report.parameters": ["tests/report/test_report_parameters.py"],
    "kit.lab.report.merge": ["tests/report/test_runs_by_hand.py", "tests/report/test_report_merge.py"],
    "kit.lab.report.planning": ["tests/report/test_runs_by_hand.py"],
    "kit.lab.report.runner": ["tests/report/test_runner_by_hand.py"],
    "kit.lab.report.child": ["tests/report/test_runner_by_hand.py"],
    "kit.lab.report.run": ["tests/report/test_runs_by_hand.py", "tests/test_gates.py"],
    "kit.lab.report.sweep.page": ["tests/report/test_sweep_by_hand.py"],
    "kit.lab.report.sweep.decode": [
        "tests/report/test_sweep_by_hand.py",
        "tests/test_sweep.py::test_a_wrong_way_is_one_clear_error",
    ],
    "kit.lab.report.sweep.run": ["tests/report/test_sweep_by_hand.py"],
    "kit.lab.report.sweep.spec": [
        f"tests/test_sweep.py::test_{name}"
        for name in (
            "a_grid_is_the_product_of_its_axes",
            "a_wrong_spec_is_one_clear_error",
            "the_key_changes_with_all_that_it_is_made_of",
        )
    ],
    "kit.lab.report.lead": ["tests/report/test_lead.py"],
    "kit.cache.policies.queues": ["tests/test_cache_policies.py"],
    "kit.cache.policies.adaptive": ["tests/test_cache_policies.py", "tests/test_cache_peers.py"],
    "kit.cache.policies.base": ["tests/test_cache_policies.py"],
    "kit.cache.policies.cyclic": [
        "tests/test_cache_policies.py::test_next_use_evicts_the_farthest_and_only_for_what_is_needed_sooner",
        "tests/test_cache_policies.py::test_next_use_in_short_traces_where_waits_are_equal",
        "tests/test_cache_policies.py::test_cyclic_aware_keeps_what_the_better_of_next_use_and_lru_keeps",
    ],
    "kit.cache.policies.offline": [
        "tests/test_cache_policies.py::test_min_evicts_the_farthest_and_only_for_what_is_needed_sooner",
        "tests/test_cache_policies.py::test_min_without_its_future",
    ],
    "kit.cache.policies.partitioned": ["tests/test_gguf_by_hand.py"],
    "kit.cache.policies.pinned": ["tests/test_gguf_by_hand.py"],
    "kit.gguf.names": ["tests/test_gguf_by_hand.py"],
    "kit.gguf.cut": ["tests/test_gguf_by_hand.py"],
    "kit.gguf.uses": ["tests/test_gguf_by_hand.py"],
    "kit.cache.prefetch": ["tests/test_cache_store.py"],
    "kit.cache.store": ["tests/test_cache_store.py"],
    "kit.cache.traces": ["tests/test_cache_traces.py"],
    "kit.cache.replay": ["tests/test_cache_policies.py", "tests/test_cache_traces.py"],
}


ALIKE = {  # (module, beginning of a line) -> why a mutant of it that survives does what the line does
    ("kit.gguf.uses", "return (2, 0, _ENDS[role])"): "numbers that keep the order",
    ("kit.quants.plain", "values = values + minimum"): "a sign is 1 or -1",
    ("kit.quants.plain", 'parts = [(block["qs"][:, :32], 5)'): "a byte has the five digits that there are powers for",
    ("kit.lab.predicting.sampling", "if len(info.shape) == 2 and info.elements"): "all rows of one that is as large",
    ("kit.lab.predicting.routing", "return read_routes(capture).first("): "as many layers for experts and for the rest",
    ("kit.lab.predicting.route_text", "if type(value) is not int or not possible(0"): "whatever layer there can be",
    ("kit.lab.predicting.routes", "_, place, counts = np.unique("): "whatever tells pass and layer, below 10,000, from others",
    ("kit.lab.predicting.routes", "experts = max(count("): "a record names an expert, so there is one at least",
    ("kit.lab.predicting.routes", "return replace(routes, experts="): "the same",
    ("kit.cache.replay", "if policy.resident_bytes > peak:"): "an equal peak is the peak",
    ("kit.cache.replay", "for index, (key, size) in enumerate("): "keys and sizes of Requests are as many",
    ("kit.cache.prefetch", "largest = max("): "a plan without layers has nothing to load ahead",
    ("kit.cache.policies.cyclic", "if len(heap) > 4"): "when entries of the past are thrown away changes no eviction",
    ("kit.cache.policies.cyclic", 'wait, victim = -1, ""'): "whatever is below the wait of one that was used last",
    ("kit.cache.policies.offline", "if self._later and -self._later[0] > after"): "two accesses have no next use in common",
    ("kit.cache.policies.cyclic", "self._now = 0"): "gaps are the same from whatever beginning",
    ("kit.cache.policies.cyclic", "self._now = now = self._now + 1"): "gaps that are all twice as long keep their order",
    ("kit.cache.policies.adaptive", "asked = counts.get(key, 0)"): "what is to be admitted was asked for: it has a count",
    ("kit.lab.explaining.quants", 'bar = tqdm(total=rounds, desc="speeds"'): "a bar of progress",
    ("kit.lab.explaining.quants", 'say(f"speeds: round {number + 1} of'): "a line of progress",
    ("kit.lab.explaining.quants", "names = dict(zip(paths, distinct_names"): "as many names as paths",
    ("kit.lab.explaining.quants", 'read, one["kl"], one["kl_error"]'): "a column that the next line overwrites",
    ("kit.lab.explaining.quants", 'axes.plot(part["x"], part["bound"], "_"'): "a dash longer by a point",
    ("kit.lab.explaining.quants", 'place = {"xytext": (0, -16'): "a name a point farther off, on its side",
    ("kit.lab.explaining.quants", 'axes.annotate(names[name] + ", KL 0"'): "letters larger by a point",
    ("kit.lab.explaining.quants", 'axes.plot(best["x"], best["speed"]'): "a line that stays behind the points",
    ("kit.lab.explaining.quants", "axes.legend(fontsize="): "letters larger by a point",
    ("kit.lab.drafts.costs", "verify = tuple(map(median, zip("): "as many sizes a round",
    ("kit.lab.drafts.costs", 'rate = max(roof.rates["float32"]'): "a rate of 0 and of 1 operation per second are none",
    ("kit.lab.drafts.costs", 'states = held(model.config, 0)["states"]'): "states do not grow with the positions",
    ("kit.lab.report.merge", "for name, source in zip(names, sources"): "as many names as sources",
    ("kit.lab.report.merge", "for source, label in zip(sources"): "as many labels as sources",
    ("kit.lab.report.merge", "for entries in zip(*(book.read"): "every run has every claim",
    ("kit.lab.report.merge", "claims=[(entries[0].claim"): "the entries of one claim",
    ("kit.lab.report.run", "rose = lambda row: any("): "equal to the last bit of a product",
    ("kit.lab.report.run", "return nbformat.read(path"): "a notebook of version 4 is not changed",
    ("kit.lab.report.run", "write_whole(self.folder / STATE"): "a version that nothing reads, and the width of an indent",
    ("kit.lab.report.child", 'kernel_name="python3", language="python", progress_bar='): "a bar of progress in a log",
    ("kit.lab.report.child", "start_timeout=3600"): "an hour, or six minutes more",
    ("kit.lab.report.child", "os._exit(1)"): "nobody waits for a process whose parent is gone",
    ("kit.lab.report.theme", "trim_blocks=True, lstrip_blocks=True"): "blanks and empty lines of HTML",
    ("kit.lab.report.sources", "for stop in range(2, len(parts) + 1)"): "a whole name once more",
    ("kit.lab.report.sources", "return total.hexdigest()["): "a digit more of a digest",
    ("kit.lab.report.ahead", "return np.zeros((rows"): "kernels are compiled for any number of rows and blocks",
    ("kit.lab.report.ahead", "cache = model.new_cache("): "a position more than the passes have",
    ("kit.lab.report.ahead", "for tokens in (prompt, [1], [1])"): "whichever token",
    ("kit.lab.report.ahead", "tiles = kit.codec.encode(torch.arange(300"): "tiles of any numbers",
    ("kit.lab.report.ahead", "time.sleep("): "how often it looks",
    ("kit.lab.report.gallery", "out.write((json.dumps("): "the width of an indent",
    ("kit.lab.report.sweep.decode", "way_of(policy, capacity, dtype, 1 << 50)"): "of a model that is large, however large",
    ("kit.lab.report.sweep.decode", "order = order_of(file, 1)"): "each token of a dense model uses the same",
    ("kit.lab.report.sweep.run", "if time.monotonic() >= end"): "at the very moment of the end",
    ("kit.lab.report.sweep.run", "time.sleep("): "how often it asks",
    ("kit.lab.report.sweep.run", "local_directory="): "what Dask logs on its way",
    ("kit.lab.report.sweep.run", "batch, futures = uuid.uuid4()"): "a digit more of a random name",
    ("kit.lab.report.sweep.run", "(partial / STATE).write_text("): "the width of an indent",
    ("kit.lab.report.sweep.spec", "settings = dict(zip(mine, values"): "as many values as names",
    ("kit.lab.report.lead", "name = str(model or peers.get("): "the last part of a path, however many are split off",
    ("kit.lab.report.lead", "return compared([theirs / ours for ours"): "as many rounds on both sides",
    ("kit.lab.report.lead", "bar for bar in self.bars if self.bound and"): "equal to the last bit",
    ("kit.lab.predicting.ways", "size = format_bytes(self.capacity or 0)"): "only names of ways with a capacity say it",
    ("kit.lab.predicting.ways", "share = sum(tensors[name].blocks"): "the divisor of a token that uses no bytes",
    ("kit.lab.predicting.ways", "kept = stats.peak_bytes * bytes_used"): "the divisor of a cache that holds nothing",
    ("kit.lab.predicting.ways", "beyond = (capacity or 0) >"): "one byte is no more than a CPU's caches either",
    ("kit.lab.predicting.ways", "return SlotWaits(wait,"): "MIN's waits beside computing, of which its bytes alone are taken",
    ("kit.lab.claims.runs", "elif 2 / math.comb("): "no fraction of orders is a bound and 1e-12",
    ("kit.lab.claims.runs", "return dict(zip(CHANGE, values"): "as many values as columns",
    ("kit.lab.claims.runs", "return [row for entries in zip(*books"): "every run has every claim",
    ("kit.lab.claims.runs", "return len({_setting(folder, one)"): "a book for each folder",
    ("kit.lab.claims.runs", "for setting, one in zip(settings, books"): "the same",
    ("kit.lab.claims.runs", "columns = [[_rows(entries)[0] for entries in zip"): "every run has every claim",
    ("kit.lab.claims.runs", "words = [(rows[0].claim"): "the rows of one claim, as many a machine",
    ("kit.lab.claims.runs", "settings = [_setting(folder, one)"): "a book for each folder",
    ("kit.lab.claims.runs", 'model, device = str(given.get("model"'): "the last part of a path, however many are split off",
    ("kit.lab.claims.runs", "return dict(zip(SETTINGS"): "as many values as settings",
    ("kit.lab.claims.runs", "seen[key := (row.notebook"): "counts that all grow by 2 pair the same rows",
    ("kit.lab.claims.runs", 'given = {"device": "cpu"} | row.parameters | {"model"'): "the last part of a path",
    ("kit.lab.claims.runs", 'timed = kind and row.how == "measured"'): "a median of 0 is left out before",
    ("kit.lab.claims.runs", "machine = machine_of(folders["): "runs of one machine",
    ("kit.lab.explaining.answer_table", "return sorted(rows"): "after the others, by whatever number",
    ("kit.lab.explaining.answer_table", "figure, axes = figures.new("): "a figure higher by a little",
    ("kit.lab.explaining.answer_table", "axes.barh("): "a bar higher by a little",
    ("kit.lab.explaining.answer_table", "axes.plot(row.ends"): "a line wider by a little",
    ("kit.lab.explaining.answer_table", "axes.axvline("): "a line wider by a little",
    ("kit.lab.explaining.answer_table", 'va="center", color=ink, fontsize'): "letters larger by a point",
    ("kit.lab.explaining.answer_table", 'va="top", fontsize'): "letters larger by a point",
    ("kit.lab.explaining.answer_table", "axes.text(0 if inside"): "a number higher by a little",
    ("kit.lab.explaining.answer_table", "axes.set_xlim("): "a picture without rows",
    ("kit.lab.engines.watch", "most = max(ran.values()"): "of no thread none computes",
    ("kit.lab.engines.watch", "limit, free = processes.memory_of("): "what is free of no limit",
    ("kit.lab.measuring.arithmetic", "whole = torch.randint("): "products take as long, of whatever numbers",
    ("kit.lab.explaining.answer", "passed = time.seconds <"): "equal to the last bit of a product",
    ("kit.lab.engines.turns", 'how = "slower" if self.high'): "an interval that ends at 1 holds it",
    ("kit.lab.measuring.kept", "key = hashlib.sha256("): "as many digits as tell calls apart",
    ("kit.lab.measuring.kept", "_calls[key] += 1"): "numbers that grow by 2 tell as many calls apart",
    ("kit.lab.measuring.pages", 'room, found = 0 if file.pages == "copied"'): "one byte is no room either",
    ("kit.lab.measuring.pages", "if info.is_known and 0 <"): "a byte is no float32",
    ("kit.lab.measuring.pages", "if now.ratio >= SMALL"): "equal to the last bit of a quotient",
    ("kit.lab.measuring.machine", "write_whole(Path(folder)"): "the width of an indent",
    ("kit.lab.measuring.machine", '("git", "-C", str(ROOT)'): "a second more of patience",
    ("kit.lab.explaining.tables", "free = parts >= 0"): "a part of no time is at its least",
    ("kit.lab.explaining.tables", "below = free & (scaled < least)"): "what is at its least stays there",
    ("kit.lab.explaining.tables", "return min(1.0, memory / max(1"): "a trace of no bytes",
    ("kit.lab.explaining.tables", "return min(1.0, interval_bound("): "a trace of no bytes",
    ("kit.lab.measuring.process", "return float(child.call("): "seconds more of patience",
    ("kit.lab.measuring.disk", "done, count = 0, 1"): "true, until the first read",
    ("kit.lab.measuring.disk", "os.fdopen(open_past("): "a read that is larger than a buffer passes it",
    ("kit.lab.measuring.child", "super().__init__(f"): "a tenth more of a long line",
    ("kit.lab.measuring.gpu", "host = torch.empty(min(count"): "a copy of another size, where the device has so much",
    ("kit.lab.measuring.gpu", "tiny = torch.zeros("): "two numbers in place of one",
    ("kit.lab.measuring.gpu", "tiny.add_("): "an addition takes as long, of whatever number",
    ("kit.lab.measuring.gpu", '("host_to_device_gbps", host.nbytes'): "the events enclose the copy, whoever waits for it",
    ("kit.lab.explaining.causes", "if (total := sum("): "parts that sum to the token are scaled by 1",
    ("kit.lab.measuring.conditions", "return digest.hexdigest()["): "as many digits as tell builds apart",
    ("kit.lab.measuring.measurements", "with self.path.open("): "what is buffered is written when the file is closed",
    ("kit.lab.measuring.measurements", "out.seek(max(0, size - 1))"): "an empty file has no last byte, wherever one looks",
    ("kit.lab.measuring.measurements", "torn = size and"): "one byte is left to read",
    ("kit.lab.measuring.measurements", "data = np.ascontiguousarray("): "any negative size is what is left",
    ("kit.lab.predicting.quality", "return digest.hexdigest()["): "a digit more of a digest",
    ("kit.lab.predicting.divergence", "size = math.ceil("): "steps of another size score the same positions",
    ("kit.lab.predicting.divergence", "for start in steps(range("): "the last step begins before either end, or is empty",
    ("kit.lab.predicting.divergence", "if skip < len(ids):"): "a part without positions",
    (
        "kit.lab.predicting.divergence",
        "if most is not None and start >= first + most:",
    ): "what is scored beyond is cut at the end",
    ("kit.lab.claims.gates", "if high > NOISE * low:"): "two bounds that differ by 2% to the last bit of a product",
    (
        "kit.cache.policies.base",
        "self._uses[key] = uses[0] + 1 if uses else 1",
    ): "counts that all begin at 2, or grow by 2, keep their order",
}


def places(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """The nodes that can change and the field that does: operators and numbers inside functions."""
    found = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        parts = [part for statement in function.body for part in ast.walk(statement)]
        same = _same(parts)
        for node in (part for part in parts if part not in same):
            if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
                found.append((node, "value"))
            elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp)) and type(node.op) in SWAPS:
                found.append((node, "op"))
            elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
                found.append((node, "ops"))
    return list(dict.fromkeys(found))


def _same(parts: list[ast.AST]) -> set[ast.AST]:
    """Numbers whose change tells nothing: zip's strict, which refuses what no caller gives, and the 1 of reshape(-1), where any
    negative size is what is left."""
    strict = {part.value for part in parts if isinstance(part, ast.keyword) and part.arg == "strict"}
    calls = [part for part in parts if isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "reshape"]
    given = [of for call in calls for of in call.args if isinstance(of, ast.UnaryOp) and isinstance(of.op, ast.USub)]
    return strict | {of.operand for of in given}


def mutant(tree: ast.Module, number: int) -> tuple[ast.Module, ast.AST]:
    """The tree with the change ``number``, and what changed in it."""
    changed = copy.deepcopy(tree)
    node, field = places(changed)[number]
    if field == "value":
        more = node.value + max(1, abs(node.value) // 10)  # one more of 1e9 is the same number
        node.value = not node.value if isinstance(node.value, bool) else more
    elif field == "op":
        node.op = SWAPS[type(node.op)]()
    else:
        node.ops[0] = SWAPS[type(node.ops[0])]()
    return changed, node


class Mutants:
    """A plugin of pytest. In a forked process each time, the collected tests run once as they are, and then for each mutant
    until one fails: first those that came by its line, the quickest before others. No mutant begins after ``seconds``."""

    def __init__(self, module, every: int, seconds: float, out):
        self.module, self.out, self.ends = module, out, time.monotonic() + seconds
        self.lines = Path(module.__file__).read_text("utf-8").splitlines()
        self.tree = ast.parse("\n".join(self.lines))
        self.chosen, self.tried, self.survived = range(0, len(places(self.tree)), every), 0, 0

    def pytest_runtestloop(self, session):
        session.config.pluginmanager.get_plugin("terminalreporter")._tw._file = open(os.devnull, "w")
        ran, imported = forked(self._ran, session) or (None, ())
        if ran is None:
            raise session.Failed("the tests fail without a mutant")
        for name in imported:  # once, and not in each forked process: numba alone takes a second
            importlib.import_module(name)
        for number in self.chosen:
            if time.monotonic() > self.ends:
                break
            changed, node = mutant(self.tree, number)
            near = {place for place, (_, lines) in enumerate(ran) if {*lines} & {*range(node.lineno, node.end_lineno + 1)}}
            tests = sorted(range(len(ran)), key=lambda place, near=near: (place not in near, ran[place][0])) if near else []
            text = self.lines[node.lineno - 1].strip()
            known = any(name == self.module.__name__ and text.startswith(start) for name, start in ALIKE)
            self.tried += 1
            if not known and forked(self._passes, session, changed, tests):
                self.survived += 1
                print(f"{self.module.__file__}:{node.lineno}: {text}", file=self.out, flush=True)
        return True

    def _ran(self, session) -> tuple[list, list[str]]:
        """(seconds, lines of the module that ran) of each test, and the modules of the kit that they imported."""
        ran, before = [], {*sys.modules}
        for item, after in pairwise([*session.items, None]):
            lines, start = set(), time.perf_counter()
            sys.settrace(functools.partial(self._note, lines))
            threading.settrace(sys.gettrace())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            sys.settrace(None)
            ran.append((time.perf_counter() - start, sorted(lines)))
        if session.testsfailed:
            raise AssertionError
        return ran, sorted(name for name in {*sys.modules} - before if name.startswith("kit."))

    def _note(self, lines: set, frame, *_):
        """Trace the lines of the module's frames."""
        if frame.f_code.co_filename != self.module.__file__:
            return None

        def trace(frame, *_):
            lines.add(frame.f_lineno)
            return trace

        return trace(frame)

    def _passes(self, session, tree: ast.Module, tests: list[int]) -> bool:
        """Whether the tests pass when the module's functions are those of the tree."""
        codes = dict(_codes(compile(ast.fix_missing_locations(tree), self.module.__file__, "exec")))
        for part in vars(self.module).values():
            _take_code(part, codes, self.module.__name__)
        for item, after in pairwise([*(session.items[place] for place in tests), None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                return False
        return True


def forked(work, *of):
    """What ``work(*of)`` returns in a forked process, as JSON has it; None if it ends otherwise."""
    with tempfile.NamedTemporaryFile("w+") as file:
        if not (child := os.fork()):
            try:
                json.dump(work(*of), file)
                file.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        text = Path(file.name).read_text()
    return json.loads(text) if text else None


def _codes(code) -> Iterator[tuple[str, CodeType]]:
    """(qualified name, code) of all functions in a code."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part.co_qualname, part
            yield from _codes(part)


def _take_code(old, codes: dict, module: str) -> None:
    """Give a function, or the methods of a class of the module, their code in ``codes``."""
    if isinstance(old, type) and old.__module__ == module:
        for part in vars(old).values():
            _take_code(part, codes, module)
        return
    old = inspect.unwrap(getattr(old, "fget", None) or getattr(old, "func", None) or old)
    new = codes.get(getattr(old, "__qualname__", ""))
    if new and getattr(old, "__module__", "") == module and hasattr(old, "__code__"):
        old.__code__ = new


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="?")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--room", help="a folder of the kit: every module of it that TESTS names")
    parser.add_argument("--every", type=int, default=1, help="only each Nth mutant")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of a module, after which no mutant begins")
    asked = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if asked.room:
        names = [name for name in TESTS if name.startswith(asked.room.strip("/").replace("/", "."))]
        more = [f"--every={asked.every}", f"--seconds={asked.seconds}"]
        again = [[sys.executable, __file__, name, *TESTS[name], *more] for name in names]
        sys.exit(min(99, sum(subprocess.run(command).returncode for command in again)) if names else f"no row: {asked.room}")
    plugin = Mutants(importlib.import_module(asked.module), asked.every, asked.seconds, os.fdopen(os.dup(1), "w"))
    options = ["-n0", "-q", "-p", "no:cacheprovider", "--timeout", "20", "-m", "not slow"]
    if pytest.main([*asked.tests, *options], plugins=[plugin]) != pytest.ExitCode.OK:
        sys.exit("the tests fail without a mutant")
    found = f"{plugin.tried - plugin.survived} of {plugin.tried} mutants of {asked.module} noticed, or explained in ALIKE"
    print(found + f" ({len(plugin.chosen)} asked)" * (plugin.tried < len(plugin.chosen)))
    sys.exit(min(99, plugin.survived))
