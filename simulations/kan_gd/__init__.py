"""[KAN-GD]'s claim: at a fixed ε a moderate width and a moderate number of steps are best."""
