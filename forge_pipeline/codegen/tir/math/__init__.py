"""Functions of numbers as polynomials, in vectors and in float64."""
