"""Special functions and transforms of fractional calculus."""
