"""What is particular to bytes on x86: pmaddubsw, and stores that narrow."""
