"""What an engine sees: a task and its tiles, what a plan is, and the contexts that it emits with."""
