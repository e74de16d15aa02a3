"""Products of few rows, as fast as their weights come from memory."""
