"""Fuzzing with coverage: ``make fuzz MINUTES=10``, or ``python -m fuzz gguf tiles --minutes 2``. See fuzz/targets.py."""
