"""The twelve groups of a privacy statement as plain data: what `report.json` is made of."""
