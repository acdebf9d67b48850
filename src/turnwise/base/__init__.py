"""What every other part uses: errors, files, terminal, tables, sections of recipes."""
