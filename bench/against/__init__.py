"""Whether this build is slower than another revision's: ``./dev bench --against REV``."""
