"""Read what agents did elsewhere from their logs."""
