"""All steps of a recurrent layer in one stage: `kitsune.recurrence`."""
