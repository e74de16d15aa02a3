"""Slow judges that share no code with what they judge."""
