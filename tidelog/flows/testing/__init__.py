"""What tests of flows use: a virtual clock, a pipeline by itself."""
