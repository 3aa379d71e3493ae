"""Analysis of compiled programs: FLOPs, network traffic, and whether all devices run the collectives in one order."""
