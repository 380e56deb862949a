"""The report as one HTML page, made of `report.json` and of nothing else."""
