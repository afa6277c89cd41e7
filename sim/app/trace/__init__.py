"""What happened when: a run as a timeline, for Perfetto, Konata and the HTML report. `sim.app.run.trace` makes one."""
