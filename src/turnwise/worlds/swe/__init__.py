"""Software repair: an agent edits a repository until its tests pass, in a sandbox."""
