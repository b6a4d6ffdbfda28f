"""From notebooks to a report: strict parameters, a process a notebook, pages that work offline, runs side by side."""
