"""A recorded pass whose experts are not all in memory: it runs in parts, and asks for a layer's experts when its router has
chosen.

The products of experts that are in memory run first, while the others are read. What they give is added up in the order of
the experts, so the logits are bit for bit those of the whole program.
"""

from typing import NamedTuple

import numpy as np


class RecordedMixture(NamedTuple):
    """A layer's experts in a program: for each place among the chosen its steps ``products``, and the step after them that
    adds up what they give; ``uses``: (step, stack, place) of each product with an expert's matrix."""

    layer: int
    products: list[range]
    uses: list[tuple[int, str, int]]


class Parts:
    """Runs a program; ``chosen`` (layers, experts in use) has what its routers chose."""

    def __init__(self, program, mixtures: list[RecordedMixture], chosen: np.ndarray):
        self._program, self._mixtures, self._chosen = program, mixtures, chosen
        self._words = program.steps.reshape(-1)  # no step is added any more
        self._places = {  # of the address of the blocks among the words, by step
            step: (program.address(step, "blocks") - program.steps.ctypes.data) // program.steps.itemsize
            for mixture in mixtures
            for step, _, _ in mixture.uses
        }

    def run(self, experts) -> None:
        """``experts``: kit.model.slots.Experts."""
        self._program.begin()
        done = 0
        for mixture in self._mixtures:
            self._do(range(done, mixture.products[0].start))
            done = self._mix(mixture, experts)
        self._do(range(done, len(self._program.steps)))

    def _mix(self, mixture, experts) -> int:
        """Do the steps of a layer's experts, unless all are in memory: they run with those up to the next router. Returns the
        first step that is not done."""
        if experts.route:
            self._chosen[mixture.layer] = experts.route(mixture.layer)
        chosen = self._chosen[mixture.layer].tolist()
        names = [f"{stack}[{chosen[place]}]" for _, stack, place in mixture.uses]
        if not (coming := experts.expects(names)):
            for name, (step, _, _) in zip(names, mixture.uses, strict=True):
                self._words[self._places[step]] = experts.address(name)
            return mixture.products[0].start
        late, of = set(), [[] for _ in mixture.products]  # for each place its (name of a matrix, step of its product)
        for name, (step, _, place) in zip(names, mixture.uses, strict=True):
            of[place].append((name, step))
            if name in coming:
                late.add(place)
        early = [place for place in range(len(of)) if place not in late]
        ready, added = set(), 0
        for group in [early] * bool(early) + [[place] for place in sorted(late)]:
            for place in group:
                for name, step in of[place]:
                    self._words[self._places[step]] = experts.address(name)
            ready.update(group)
            steps = [mixture.products[place] for place in group]
            while added in ready:
                end = mixture.products[added].stop
                steps.append(range(end, end + 1))
                added += 1
            self._do(*steps)
        return mixture.products[-1].stop + 1

    def _do(self, *ranges):
        """Run these steps, one range after another."""
        steps = [step for each in ranges for step in each]
        if steps:
            self._program.run_some(slice(steps[0], steps[-1] + 1) if len(ranges) == 1 else steps)
