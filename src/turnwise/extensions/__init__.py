"""What recipes may add. Nothing below this folder names one of them: they are found in the register."""
