"""Quantized models of other forms (QOperator, com.microsoft, blocks, channels last), written with QDQ pairs."""
