"""Running passes: pipelines as text, options, instrumentation, diagnostics, reproducers."""
