"""What is particular to bytes on x86: pmaddubsw, AMX, and stores that narrow."""
