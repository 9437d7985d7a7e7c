"""What is delivered of a compiled model beside a library: a program, or what a linker takes."""
