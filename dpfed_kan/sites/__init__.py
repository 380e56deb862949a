"""What lives at a site: its policy, the plan it approves, its key, its ledger, and its guard."""
