"""Credit inside the trainers that people run already. Imported on request; nothing in turnwise imports it."""
