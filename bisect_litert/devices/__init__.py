"""Jobs and where they run: a child process, another machine, a device reached by hand; what its log says."""
