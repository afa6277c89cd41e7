"""What the chips of machines are: YAML files that boards in `arch/presets` build on."""
