"""Session: what every notebook starts with. It finds the model, knows the machine and writes the records."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from kit.errors import ReportError
from kit.gguf.sources import largest_part, resolve
from kit.lab import figures, profiles, tables
from kit.lab.claims import records
from kit.lab.claims import table as claims
from kit.lab.claims.gates import LEAST
from kit.lab.claims.judge import beside_others, judge
from kit.lab.measuring import disk, kept, limits, machine, state
from kit.lab.measuring.doctor import check_device
from kit.lab.measuring.gpu import Limits
from kit.system import note
from kit.system.paths import models_folder, results_folder, shown
from kit.units import format_quantity

_LOOK_SECONDS = 3.0
_COMMAND = re.compile(r"`[^`]+`")  # a line of an answer that is one
_AGAIN = 2.0  # seconds that a notebook waits where one before it has waited in vain


class Session:
    """One run of one notebook.

    ``out`` is the folder of the run (empty: results/interactive); the records go to ``<out>/<notebook>.jsonl``, which a
    new session starts afresh. ``model`` is a path or ``hf://owner/repo/file.gguf``; empty means the profile's own.
    ``device``: "cpu", or "cuda" for what a notebook adds on a GPU; ReportError, here and once, when that cannot be used.
    Further keyword arguments are parameters that every record repeats.
    """

    def __init__(self, notebook: str, profile="quick", model="", out="", seed=0, device="cpu", **parameters):
        for name, value in parameters.items():
            profiles.check_size(name, value)
        self.device = check_device(device)
        self.notebook = notebook
        self.profile = profiles.get(profile)
        self.model = model
        self.seed = seed
        self.out = Path(out).resolve() if out else results_folder() / "interactive"
        self.parameters = {"profile": profile, "model": model, "seed": seed, **parameters}
        pd.set_option("display.max_colwidth", None)  # a reason is read to its end
        self._records: list[records.Record] = []
        self._log = self.out / f"{notebook}.jsonl"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if not out and self._log.exists() and self._log.stat().st_size:  # by papermill, or in JupyterLab
                kept_as = self._log.replace(self._log.with_name(f"{self._log.name}.before"))
                print(f"The records of the run before are in {shown(kept_as)}; out = 'DIR' gives each run a folder.")
            self._log.write_text("", encoding="utf-8")
        except OSError as error:
            message = f"cannot write results to {self.out}: {error.strerror}; name another folder by out="
            raise ReportError(message) from None
        note.tell_compilation()
        with note.doing("waiting for an idle machine"):
            self.busy = kept.take("settle", notebook, lambda: "" if kept.drawing() else state.settle(self._patience()))
        self._waited = {"waited": True} if self.busy else {}  # in vain
        if self.busy:
            print(self.busy)
        self._looked = -np.inf

    @property
    def others(self) -> float:
        """Cores that other processes used, where they disturb what this page measures; else 0."""
        return getattr(self.busy, "others", 0.0)

    def _patience(self) -> float:
        """Seconds to wait for other processes; once they have not left in a run, they are looked at twice and no more."""
        most = state.patience(self.profile.patience)
        in_vain = any(row.state.get("waited") for row in records.of_run(self.out) if row.run_id == self.out.name)
        return min(most, _AGAIN) if in_vain else most

    @cached_property
    def limits(self) -> limits.KnownLimits:
        """This machine, measured once a run, and the best bandwidth that is known of it."""
        return limits.of_run(self.out, self.notebook)

    @cached_property
    def machine(self) -> machine.Machine:
        """This machine at the best bandwidth that is known of it."""
        return self.limits.machine

    def state(self, of: str = "") -> dict:
        """The machine's state (measuring.state) at the measurement ``of`` a quantity, by which a page that is rendered again
        finds it; looked at again when the last look is more than a few seconds old."""
        return kept.take("state", of, self._look)

    def _look(self) -> dict:
        if kept.drawing():  # what was measured has its state; the limits of the run are settled
            return {}
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self.busy = self.busy or state.settle(0)  # others may have come since the notebook began
            found = state.probe_state()
            limits.seen(self.out, found, not self.busy)
            self._state = found.to_dict() | ({"busy": self.busy} | self._waited if self.busy else {})
            self._looked = time.monotonic()
        return self._state

    @cached_property
    def gpu(self) -> Limits:
        """What this machine's GPU can do, measured once a run. Only on the device "cuda"."""
        return Limits.of(self.machine.gpu)

    def on_device(self, adds: str) -> bool:
        """Whether this run is on a GPU. If not, one line says so and what a run on one adds."""
        if self.device == "cpu":
            print(f"device = cpu: not measured; `kit reproduce --device cuda` adds {adds}")
        return self.device != "cpu"

    def path(self, stands_for="granite-3.3-8b") -> Path:
        """Where the model lies that stands for one of the reports' models; fetched or generated on first use."""
        return resolve(self.model) if self.model else _generated(self.profile, stands_for, self.seed)

    def tiny(self, stands_for="granite-3.3-8b") -> Path:
        """A tiny generated model of the same family, whatever the profile: for warming up and for equality on small shapes."""
        return _generated(profiles.get("smoke"), stands_for)

    def file(self, stands_for="granite-3.3-8b"):
        """The opened model (kit.GGUFFile) that stands for one of the reports' models."""
        return kit.open(self.path(stands_for))

    def record(self, claim: str | records.Record = "", device="cpu", **measured) -> records.Record:
        """Write one record: one that is made already, or of a plain measurement quantity, unit, samples, bounds. ``device`` is
        where it was measured; its parameters say so, and for "cuda" which GPU it was."""
        row = claim if isinstance(claim, records.Record) else records.Record(claim=claim, **measured)
        if row.claim:
            claims.get(row.claim)
        where = {"device": device} | ({"gpu": self.gpu.name} if device == "cuda" else {})
        seen = row.state or self.state(f"{row.claim} {row.quantity}")
        given = self.parameters | row.parameters | where
        record = replace(
            row, run_id=self.out.name, notebook=self.notebook, parameters=given, machine_id=self.machine.id,
            commit=machine.git_commit(), kit_version=kit.__version__, state=seen,
        )  # fmt: skip
        self._records.append(record)
        records.append(self._log, record)
        return record

    def bound(self, quantity: str, unit: str, least: float) -> records.Record:
        """Write the least that a quantity can be, by arithmetic: no page of the run may measure less or state another."""
        return self.record(quantity=f"{LEAST}{quantity}", unit=unit, samples=[least], how="computed")

    def judge(self, claim: str, quantity: str, unit: str, samples=(), device="cpu", **rules) -> records.Record:
        """Write the record of a verdict: kit.lab.claims.judge.judge has the ``rules``."""
        row = judge(claim, quantity, unit, samples, **rules)
        seen = row.state or self.state(f"{claim} {quantity}")
        return self.record(replace(beside_others(row, seen.get("busy", "")), state=seen), device)

    def verdict(self, claim: str, samples=(), text="", part: int = 0, **rules) -> records.Record:
        """``judge`` by a part of the claim's row in data/claims.yaml: its quantity, in which {name} is a parameter of the run,
        its unit, its region. ``text`` is the reason, empty for the row's own; ``rules`` go before those of the row."""
        given = claims.get(claim).parts[part] | ({"text": text} if text else {}) | rules
        return self.judge(claim, **given | {"quantity": given["quantity"].format(**self.parameters), "samples": samples})

    def earlier(self, quantity: str, unit: str) -> records.Record | None:
        """The first record of a quantity in this run, of this model, whichever notebook measured it. A page that is drawn again
        finds the same: the other one may be drawn at that moment."""
        return kept.take("earlier", (quantity, unit), lambda: self._earlier(quantity, unit))

    def _earlier(self, quantity: str, unit: str) -> records.Record | None:
        for row in records.of_run(self.out):
            given = {name: row.parameters.get(name) for name in ("profile", "model", "seed")}
            if (row.quantity, row.unit) == (quantity, unit) and given.items() <= self.parameters.items() and row.samples:
                return row
        return None

    def once(self, quantity: str, unit: str, measure: Callable[[], Sequence[float]]) -> list[float]:
        """Samples of a quantity that several notebooks show: the first of a run measures it, the others read its record."""
        row = self.earlier(quantity, unit) or self.record(quantity=quantity, unit=unit, samples=self._taken(quantity, measure))
        return row.samples

    def _taken(self, quantity: str, measure: Callable[[], Sequence[float]]) -> list[float]:
        return kept.take("samples", quantity, lambda: list(measure()))

    def disk(self, path: Path) -> disk.Disk:
        """The disk under the run's model, past the page cache: measured by the first notebook that asks (measuring.disk)."""
        quantity = "reading the disk, past the page cache"
        if row := self.earlier(quantity, "GB/s"):
            return disk.Disk(max(row.samples), row.reason, tuple(row.samples))
        measured = disk.speed(largest_part(path))
        if measured.gbps:
            self.record(quantity=quantity, unit="GB/s", samples=list(measured.samples), reason=measured.how)
        return measured

    def picture(self, figure) -> None:
        """Save a figure as the notebook's picture on the run's front page, drawn anew in that size."""
        figures.thumbnail(figure, self.out / f"{self.notebook}.png")

    def say(self, text: str):
        """A sentence that states an outcome, filled from the run (Markdown): the only place for one beside titles."""
        from IPython.display import Markdown  # no command needs it

        return Markdown(text)

    def gate(self, holds: bool, text: str, how: str = "counted") -> bool:
        """Show ``text`` as a warning, here and on top of the page, unless the condition holds: what must be so for the page to
        be right, such as every way equal to float32. `kit reproduce` lists the warnings. ``how``: "measured" where other
        processes can break it, because it compares times. Returns ``holds``."""
        if not holds:
            from IPython.display import HTML, display  # no command needs it

            display(HTML(f'<div class="gate"><b>Warning.</b> {escape(text)}</div>'))
            self.record(quantity="gate", unit="", status=records.WARNED, reason=text, how=how)
        return bool(holds)

    def advise(self, *lines: tuple[bool, str]):
        """What the authors of a report should change, a line each (Markdown): (whether this run bears it out, what to do)."""
        return self.say("\n".join(f"- {text}" if holds else f"- This run does not confirm: {text}" for holds, text in lines))

    def answer(self, text: str, title: str = "Answer"):
        """The notebook's answer, filled from the run (Markdown), from a cell tagged "answer"; a command is a line of the page.

        ``title``: the result in at most ten words, computed too. A page has it as its title, above the question.
        """
        lines = (" ".join(line.split()) for line in text.splitlines())
        told = "".join(f"  \n{line}  \n" if _COMMAND.fullmatch(line) else f"{line} " for line in lines)  # two blanks: a break
        return self.say(f"**{title.removesuffix('.')}.** {told.strip()}")

    def verdicts(self) -> pd.DataFrame:
        """The claims judged so far: as reported, what was found and how, the verdict and its reason."""
        rows = [
            (r.claim, claims.get(r.claim).reported, r.quantity, format_quantity(r.median, r.unit),
             "" if r.median is None else r.how, r.verdict, r.reason)
            for r in self._records
            if r.verdict
        ]  # fmt: skip
        return tables.frame(rows, "claim", "as reported", "quantity", "here", "how", "verdict", "reason")


def _generated(profile: profiles.Profile, stands_for: str, seed: int = 0) -> Path:
    from kit.lab.synthetic.write import cached_model  # no command needs it

    geometry, layers = profile.models[stands_for]
    return cached_model(geometry, layers=layers, seed=seed, folder=models_folder())
