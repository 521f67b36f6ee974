"""Why a run failed: signs from logs, events and pods, and a table of causes. No torch, no cluster."""
