"""Quantized models of other forms (QOperator, com.microsoft, blocks), written with QDQ pairs."""
