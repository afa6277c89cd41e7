"""Ways out: tables of operators' times, and traces, in the forms that other simulators read."""
