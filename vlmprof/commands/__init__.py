"""The face: one file a command. Each parses its arguments, calls one function and prints what comes back."""
