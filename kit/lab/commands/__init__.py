"""One module a command; each defines `command`. Heavy imports belong inside it, so that --help stays quick."""
