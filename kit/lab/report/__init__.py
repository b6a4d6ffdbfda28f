"""From notebooks to a report: strict parameters, a process a notebook, pages that work offline, runs side by side."""

import sys

# jsonschema's check of internationalized addresses, which no notebook has, takes more than a second to import, in the run and
# in each notebook's process; without the package jsonschema leaves that check out.
sys.modules.setdefault("rfc3987_syntax", None)
