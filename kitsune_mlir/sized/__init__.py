"""Programs for many sizes: what a call pads, which program it runs, and what it cuts."""
