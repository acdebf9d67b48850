"""Programs that run inside the sandbox. Each stands alone: it may import only Python and pytest."""
