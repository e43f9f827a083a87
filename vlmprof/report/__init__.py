"""How records are SHOWN. `terminal` for now."""
