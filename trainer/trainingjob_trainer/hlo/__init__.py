"""Reading compiled programs: what they compute and send, and whether all devices do it in one order."""
