"""One module a command; each defines `command`. Heavy imports belong inside the function, so that --help stays quick."""
