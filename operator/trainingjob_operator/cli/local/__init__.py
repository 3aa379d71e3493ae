"""Local runs: processes of this machine behind the operator's cluster interface."""
