"""What a GGUF file costs on this machine and what to change: for any file, run or from its tensors alone."""
