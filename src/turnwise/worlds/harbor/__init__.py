"""Task folders of Harbor (Terminal-Bench), in bubblewrap."""
