"""Where an artifact is run to be measured: this machine, an emulator of another CPU, or a board over SSH."""
