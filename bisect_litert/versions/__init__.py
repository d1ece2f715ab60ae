"""Other versions of the runtime, each in an environment of its own."""
