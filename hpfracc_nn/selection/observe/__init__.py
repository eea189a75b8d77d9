"""What is seen of a manager from outside: counts, events, explanations, advice and telemetry."""
