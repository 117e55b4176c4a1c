"""Pure values and rules: no I/O, and the clock is passed in."""
