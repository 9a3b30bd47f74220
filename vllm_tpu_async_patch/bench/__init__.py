"""What a step costs, strategy by strategy, over a real Ray compiled graph and stand-in devices."""
