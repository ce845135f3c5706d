"""`make bench-gpu`: decide on a GPU what was designed without one."""
