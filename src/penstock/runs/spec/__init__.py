"""What people write of runs: grids on the command line, YAML files, radT's CSV files. All become plans."""
