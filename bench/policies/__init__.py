"""`make bench-policies`: routing policies before fleets of simulated engines, on a clock that jumps or (`--real`) on a real one."""
