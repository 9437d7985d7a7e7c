"""Recurrent layers as kernels: LSTM, GRU and RNN."""
